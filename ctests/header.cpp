// The C header in C++17, twice, beside a type that dlpack.h defines.
#include <laneway.h>
#include <laneway.h>

#include "dlpack.h"

int main() {
  lw_student_options options;
  lw_student_options_init(&options);
  const lw_status status = lw_student_open(&options, lw_now(), nullptr);
  return status == LW_INVALID_ARGUMENT && options.struct_size == sizeof options ? 0 : 1;
}
