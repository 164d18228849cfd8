// Most of a snapshot are events that look alike: a whole one is read in one go.
#pragma once

#include <string>
#include <vector>

#include "pickle_rows.h"
#include "pickle_stream.h"

namespace vl {

constexpr Value kNoMemo = {UINT64_C(0xFFFFFFFF) << 4 |
                           static_cast<uint64_t>(Kind::Object)};  // never set

class RepeatedEvents {
  public:
    RepeatedEvents(Snapshot& snapshot, PickleStream& in, PickleRows& rows, Column<Value>& memo)
        : s_(snapshot), in_(in), rows_(rows), memo_(memo) {}

    // Reads EMPTY_DICT, memo, MARK, keys from the memo with plain values, SETITEMS.
    // Returns how many opcodes it took, at least; 0, with nothing changed, for all else.
    size_t read_event(Value& event);
    // After a memo entry was overwritten: bytes that refer to it may mean something else from now
    // on.
    void forget_lists();

  private:
    // A list of frames as it is written, and the one that followed it.
    struct WrittenList {
        std::string
            bytes;  // up to the byte that ends it, or for an empty list the one that follows it
        size_t length;
        uint32_t stack, next;
    };

    Snapshot& s_;
    PickleStream& in_;
    PickleRows& rows_;
    Column<Value>& memo_;
    std::vector<WrittenList> lists_;
    std::vector<uint32_t> list_of_stack_;
    std::vector<uint32_t> frame_ids_;
    uint32_t last_list_ = kNone, last_text_ = kNone;

    bool simple_value(const uint8_t*& at, Value& value) const;
    bool short_text(const uint8_t*& at, Value& value);
    bool list_of_frames(const uint8_t*& at, Value& value);
    uint32_t expected_list(const uint8_t* at) const;
    uint32_t new_list(const uint8_t* at);
};

}  // namespace vl
