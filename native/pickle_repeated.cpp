#include "pickle_repeated.h"

#include <algorithm>
#include <cstring>

#include "pickle_opcodes.h"

namespace vl {

// A value of fixed form: a small number or something remembered. False for all others.
inline bool RepeatedEvents::simple_value(const uint8_t*& at, Value& value) const {
    size_t index = 0;
    switch (*at) {
        case op::kBinInt1: value = Value::integer(at[1]), at += 2; return true;
        case op::kBinInt2: value = Value::integer(load<uint16_t>(at + 1)), at += 3; return true;
        case op::kBinInt: value = Value::integer(load<int32_t>(at + 1)), at += 5; return true;
        case op::kLong1: {
            const unsigned length = at[1];
            if (length == 0 || length > 7) return false;
            const unsigned unused = 64 - 8 * length;
            value =
                Value::integer(static_cast<int64_t>(load<uint64_t>(at + 2) << unused) >> unused);
            at += 2 + length;
            return true;
        }
        case op::kBinGet: index = at[1], at += 2; break;
        case op::kLongBinGet: index = load<uint32_t>(at + 1), at += 5; break;
        default: return false;
    }
    if (index >= memo_.size()) return false;
    value = memo_[index];
    return value.bits != kNoMemo.bits;
}

// A short text and its memo, mostly the one that stood here in the event before.
inline bool RepeatedEvents::short_text(const uint8_t*& at, Value& value) {
    const size_t length = at[1];
    if (static_cast<size_t>(in_.end - at) < length + kLongestFixedOpcode) return false;
    if (at[2 + length] != op::kMemoize) return false;
    const std::string_view bytes(reinterpret_cast<const char*>(at + 2), length);
    if (last_text_ == kNone || s_.text(last_text_) != bytes)
        last_text_ = s_.strings.id_of(bytes.data(), length);
    value = Value::of(Kind::Text, last_text_);
    memo_.push_back(value);
    at += length + 3;
    return true;
}

// Programs repeat themselves, so the bytes are first compared with those of the last list, and of
// the one that followed it the time before.
inline uint32_t RepeatedEvents::expected_list(const uint8_t* at) const {
    const auto unread = static_cast<size_t>(in_.end - at);
    const auto is_here = [&](uint32_t guess) {
        return guess != kNone && lists_[guess].bytes.size() < unread &&
               std::memcmp(at, lists_[guess].bytes.data(), lists_[guess].bytes.size()) == 0;
    };
    if (last_list_ == kNone) return kNone;
    if (is_here(last_list_)) return last_list_;
    return is_here(lists_[last_list_].next) ? lists_[last_list_].next : kNone;
}

// A list of remembered frames: EMPTY_LIST, memo, MARK, frames, APPENDS. kNone for anything else.
uint32_t RepeatedEvents::new_list(const uint8_t* at) {
    if (static_cast<size_t>(in_.end - at) < kLongestFixedOpcode || at[1] != op::kMemoize)
        return kNone;
    const uint8_t* end = at + 2;
    const bool marked =
        *end ==
        op::kMark;  // pickle sets no mark for a list of one, and writes nothing for an empty one
    if (marked) ++end;
    frame_ids_.clear();
    while (*end == op::kBinGet || *end == op::kLongBinGet) {
        Value frame;
        if (!simple_value(end, frame) || frame.kind() != Kind::Object) return kNone;
        if (s_.objects[frame.payload()].shape != Shape::Frame) return kNone;
        frame_ids_.push_back(s_.objects[frame.payload()].index);
        if (!marked) break;
        if (static_cast<size_t>(in_.end - end) < kLongestFixedOpcode) return kNone;
    }
    // The byte that proves where the list ends is compared along with it.
    const uint8_t last_byte = frame_ids_.empty() ? op::kSetItems
                              : marked           ? op::kAppends
                                                 : op::kAppend;
    if (*end != last_byte || (frame_ids_.empty() && marked)) return kNone;
    const uint32_t stack = s_.stacks.id_of(frame_ids_.data(), frame_ids_.size());
    list_of_stack_.resize(std::max<size_t>(list_of_stack_.size(), stack + size_t{1}), kNone);
    const std::string bytes(reinterpret_cast<const char*>(at), static_cast<size_t>(end + 1 - at));
    const uint32_t earlier = list_of_stack_[stack];
    if (earlier != kNone && lists_[earlier].bytes == bytes) return earlier;
    list_of_stack_[stack] = static_cast<uint32_t>(lists_.size());
    lists_.push_back({bytes, bytes.size() - frame_ids_.empty(), stack, kNone});
    return list_of_stack_[stack];
}

inline bool RepeatedEvents::list_of_frames(const uint8_t*& at, Value& value) {
    uint32_t list = expected_list(at);
    if (list == kNone) list = new_list(at);
    if (list == kNone) return false;
    if (last_list_ != kNone && list != last_list_) lists_[last_list_].next = list;
    last_list_ = list;
    value = rows_.new_container(Shape::Stack, lists_[list].stack);
    memo_.push_back(value);
    at += lists_[list].length;
    return true;
}

size_t RepeatedEvents::read_event(Value& event) {
    constexpr size_t kMostPairs = 16;
    const uint8_t* at = in_.at;
    if (in_.ahead() < 4 * kLongestFixedOpcode) return 0;
    if (at[1] != op::kMemoize || at[2] != op::kMark) return 0;
    at += 3;
    const size_t objects = s_.objects.size(), memo = memo_.size();
    event = rows_.new_container(Shape::EmptyDict);
    memo_.push_back(event);
    Value pairs[2 * kMostPairs];
    size_t count = 0;
    bool plain = true;
    for (; plain && *at != op::kSetItems; count += 2) {
        plain = count < 2 * kMostPairs &&
                static_cast<size_t>(in_.end - at) >= 4 * kLongestFixedOpcode &&
                simple_value(at, pairs[count]) && pairs[count].kind() == Kind::Text;
        if (!plain) break;
        Value& value = pairs[count + 1];
        switch (*at) {
            case op::kShortBinUnicode: plain = short_text(at, value); break;
            case op::kEmptyList: plain = list_of_frames(at, value); break;
            default: plain = simple_value(at, value);
        }
        plain = plain && static_cast<size_t>(in_.end - at) >= kLongestFixedOpcode;
    }
    if (!plain || count == 0 || pairs[0].payload() != kAction) {
        s_.objects.truncate(objects);
        memo_.truncate(memo);
        return 0;
    }
    const uint32_t row = rows_.new_event();
    s_.objects[objects] = {Shape::Event, row};
    for (size_t i = 0; i < count; i += 2) {
        rows_.set_event(row, static_cast<uint32_t>(pairs[i].payload()), pairs[i + 1]);
    }
    in_.at = at + 1;
    return count + 4;
}

void RepeatedEvents::forget_lists() {
    lists_.clear(), list_of_stack_.clear();
    last_list_ = kNone;
}

}  // namespace vl
