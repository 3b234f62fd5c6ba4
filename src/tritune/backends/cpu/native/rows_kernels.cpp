#include "rows_kernels.h"

#include "isa.h"

namespace tritune {

TRITUNE_KERNEL_TABLES(RowKernels, row_kernels)

}  // namespace tritune
