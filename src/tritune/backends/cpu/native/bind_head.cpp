#include "tape.h"

namespace tritune {

void bind_head(nanobind::module_&) {}

}  // namespace tritune
