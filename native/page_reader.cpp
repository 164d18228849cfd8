// The reader as a page calls it (WebAssembly): the page hands over a file's bytes as it is asked
// for them.

#include "vramlens.h"

extern "C" {

// Fills at most `capacity` bytes; returns how many, 0 at the end. The page defines it.
__attribute__((import_module("page"), import_name("fill"))) int32_t vl_page_fill(uint8_t* buffer,
                                                                                 int32_t capacity);

static int64_t fill(void*, uint8_t* buffer, int64_t capacity) {
    return vl_page_fill(buffer, static_cast<int32_t>(capacity));
}

VL_EXPORT vl_snapshot* vl_page_read(void) {
    return vl_snapshot_read(fill, nullptr);
}
}
