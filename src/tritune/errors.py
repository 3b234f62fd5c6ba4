"""Every exception that tritune raises on purpose.

TrituneError                  base of all; the command line prints its message on one line and exits with ``exit_code``
├── InputError                something the user gave is wrong                       (exit 2)
│   ├── ConfigError           a setting or an option
│   ├── ModelFileError        a model's directory, config, weights or tokenizer
│   ├── AdapterError          an adapter's files, or an adapter that does not fit the model
│   └── DataError             a file of training rows
├── ContextLengthError        prompt + new tokens do not fit the context             (exit 2)
├── DeviceError               no such device, or the device refused or failed        (exit 3)
│   ├── OutOfMemoryError      the device could not provide a buffer
│   └── DeviceLostError       the device went away
└── TrainingError             training cannot go on (non-finite gradients)           (exit 4)
"""


class TrituneError(Exception):
    """Base of all errors raised on purpose; its text is one line that names the thing, what was expected and found."""

    exit_code = 1


class InputError(TrituneError):
    """Something that the user gave is wrong."""

    exit_code = 2


class ConfigError(InputError):
    """A setting or an option has a value that cannot be used."""


class ModelFileError(InputError):
    """A model's files are missing, damaged or of a kind that is not supported."""


class AdapterError(InputError):
    """An adapter's files are missing, damaged, not supported, or made for another model."""


class DataError(InputError):
    """A file of training rows cannot be used."""


class ContextLengthError(TrituneError):
    """The prompt and the tokens asked for do not fit the model's context."""

    exit_code = 2


class DeviceError(TrituneError):
    """A device is not there, refused a request, or failed."""

    exit_code = 3


class OutOfMemoryError(DeviceError):
    """A device could not provide the memory asked for."""


class DeviceLostError(DeviceError):
    """A device went away while it was used."""


class TrainingError(TrituneError):
    """Training cannot go on."""

    exit_code = 4
