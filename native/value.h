// A pickled value in 64 bits: four bits of kind, sixty of payload.
#pragma once

#include <cstdint>

namespace vl {

enum class Kind : uint8_t {
    None = 0,
    Bool,
    Int,       // payload: the number, when it fits in 60 signed bits
    WideInt,   // payload: index into Snapshot::wide (two's complement in 64 bits)
    WideUint,  // the same, for numbers from 2^63 to 2^64 - 1
    Float,     // payload: index into Snapshot::floats
    Text,      // payload: string id
    Bytes,     // payload: string id
    Object,    // payload: object id (list, dict or tuple)
};

struct Value {
    uint64_t bits;  // not set to zero: arrays of these stand in the hottest loop

    static Value of(Kind kind, uint64_t payload) {
        return {payload << 4 | static_cast<uint64_t>(kind)};
    }
    static Value nothing() { return {0}; }
    static Value integer(int64_t number) { return of(Kind::Int, static_cast<uint64_t>(number)); }
    Kind kind() const { return static_cast<Kind>(bits & 15); }
    uint64_t payload() const { return bits >> 4; }
    int64_t number() const { return static_cast<int64_t>(bits) >> 4; }
};

inline bool fits_inline(int64_t number) {
    return number >= -(INT64_C(1) << 59) && number < (INT64_C(1) << 59);
}

}  // namespace vl
