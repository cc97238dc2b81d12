// What this library was built from, as one line of JSON: the loader compares it with the sources beside it.
#include "abi.h"

NVFP4_EXPORT const char *nvfp4_build() { return NVFP4_BUILD; }
