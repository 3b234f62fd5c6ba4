#include "tape.h"

namespace tritune {

void bind_attention(nanobind::module_&) {}

}  // namespace tritune
