"""The command line: one thin file a command; each parses its flags, calls the library and prints."""
