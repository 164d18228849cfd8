// The opcodes of pickle protocols 2 to 5 (names and values: CPython, Lib/pickletools.py), and the
// bytes of each.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace vl {

namespace op {
// clang-format off
enum Opcode : uint8_t {
    kProto = 0x80, kFrame = 0x95, kStop = '.', kMark = '(',
    kNone = 'N', kNewTrue = 0x88, kNewFalse = 0x89,
    kBinInt1 = 'K', kBinInt2 = 'M', kBinInt = 'J', kLong1 = 0x8a, kLong4 = 0x8b, kBinFloat = 'G',
    kShortBinUnicode = 0x8c, kBinUnicode = 'X', kBinUnicode8 = 0x8d, kShortBinString = 'U', kBinString = 'T',
    kShortBinBytes = 'C', kBinBytes = 'B', kBinBytes8 = 0x8e, kByteArray8 = 0x96,
    kEmptyDict = '}', kSetItem = 's', kSetItems = 'u',
    kEmptyList = ']', kAppend = 'a', kAppends = 'e',
    kEmptyTuple = ')', kTuple1 = 0x85, kTuple2 = 0x86, kTuple3 = 0x87, kTuple = 't',
    kMemoize = 0x94, kBinPut = 'q', kLongBinPut = 'r', kBinGet = 'h', kLongBinGet = 'j',
    // What imports, calls, builds, or asks the reader for an object: refused.
    kGlobal = 'c', kStackGlobal = 0x93, kReduce = 'R', kBuild = 'b', kInst = 'i', kObj = 'o', kNewObj = 0x81,
    kNewObjEx = 0x92, kPersId = 'P', kBinPersId = 'Q', kExt1 = 0x82, kExt2 = 0x83, kExt4 = 0x84,
    kNextBuffer = 0x97, kReadonlyBuffer = 0x98
};
// clang-format on
}  // namespace op

// Bytes of an opcode with its fixed arguments; for texts and long numbers, the part before their
// bytes.
struct OpcodeLengths {
    uint8_t of[256];
    constexpr OpcodeLengths() : of() {
        for (int opcode = 0; opcode < 256; ++opcode) of[opcode] = 1;
        set(2, {op::kProto, op::kBinInt1, op::kLong1, op::kShortBinUnicode, op::kShortBinString,
                op::kShortBinBytes, op::kBinPut, op::kBinGet});
        set(3, {op::kBinInt2});
        set(5, {op::kBinInt, op::kLong4, op::kBinUnicode, op::kBinString, op::kBinBytes,
                op::kLongBinPut, op::kLongBinGet});
        set(9, {op::kFrame, op::kBinFloat, op::kBinUnicode8, op::kBinBytes8, op::kByteArray8});
    }

  private:
    constexpr void set(uint8_t length, std::initializer_list<op::Opcode> opcodes) {
        for (const auto opcode : opcodes) of[opcode] = length;
    }
};
constexpr OpcodeLengths kOpcodeLengths;

}  // namespace vl
