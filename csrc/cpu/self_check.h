// A tiny product and a tiny attention, compared with the portable path: run when an instruction set is first chosen.
#pragma once

#include "tables.h"

namespace pgk {

// PGK_OK, or PGK_MISMATCH with the place of the difference as the last error.
int32_t self_check(const KernelTable& table, const KernelTable& portable, const char* name);

}  // namespace pgk
