// The opcode machine: runs the value opcodes of pickle protocols 2 to 5 and fills the tables of a
// Snapshot.
//
// It knows no opcode that imports, calls or builds; meeting one ends the reading. Memory stays
// within a small multiple of the bytes read so far, whatever the bytes claim: a memo index may not
// exceed the number of opcodes seen, a string is read before room for it is made, containers and
// waiting values are counted.

#include <cstdio>
#include <cstring>
#include <new>

#include "pickle_opcodes.h"
#include "pickle_recovery.h"
#include "pickle_repeated.h"
#include "pickle_rows.h"
#include "pickle_stream.h"
#include "snapshot.h"

namespace vl {
namespace {

constexpr size_t kOpenMarks = 1000;  // snapshots nest 7 deep
constexpr size_t kBytesPerContainer =
    8;  // at least; real snapshots: 23 to 50, and as many for a value that waits
constexpr size_t kContainersAtLeast = size_t{1} << 18;

[[noreturn]] void truncated() {
    throw Stop{VL_TRUNCATED, "the file ends early"};
}

double big_endian_double(const uint8_t* bytes) {
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | bytes[i];
    double number;
    std::memcpy(&number, &bits, 8);
    return number;
}

class Machine {
  public:
    Machine(Snapshot& snapshot, PickleStream& in)
        : s_(snapshot), in_(in), rows_(snapshot), repeated_(snapshot, in, rows_, memo_) {}

    // The value of the whole pickle, or of as much of it as there is.
    Value read() {
        try {
            run();
        } catch (const Stop& stop) {
            if (stop.code != VL_TRUNCATED) throw;
            truncated_ = true;
            close_open_containers(s_, rows_, stack_, marks_);
        }
        return stack_.empty() ? Value::of(Kind::None, 0) : stack_[0];
    }
    bool was_truncated() const { return truncated_; }

  private:
    bool truncated_ = false;
    Snapshot& s_;
    PickleStream& in_;
    Column<Value> stack_;
    std::vector<size_t> marks_;
    Column<Value> memo_;
    PickleRows rows_;
    RepeatedEvents repeated_;

    void push(Value value) { stack_.push_back(value); }
    Value pop() {
        if (stack_.size() <= floor()) malformed("an opcode takes more values than there are");
        const Value value = stack_.back();
        stack_.truncate(stack_.size() - 1);
        return value;
    }
    size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
    size_t pop_mark() {
        if (marks_.empty()) malformed("an opcode needs a mark that was never set");
        const size_t mark = marks_.back();
        marks_.pop_back();
        return mark;
    }

    void run();
    size_t repeated_event();
    void text(Kind kind, size_t header, uint64_t length);
    void integer(int64_t number);
    void long_integer(size_t header, uint64_t length);
    void tuple(size_t count);
    void set_items(Value dict, const Value* pairs, size_t count);
    void memoize(uint64_t index, uint64_t opcodes);
    void recall(uint64_t index);
    void check_proportions() const;
};

void Machine::run() {
    if (!in_.have(1)) throw Stop{VL_MALFORMED, "the file is empty"};
    in_.have(2);
    if (in_.at[0] != op::kProto) throw Stop{VL_MALFORMED, "not a pickle of protocol 2 to 5"};
    uint64_t opcodes = 0;
    for (;; ++opcodes) {
        if (in_.ahead() < kLongestFixedOpcode) {
            check_proportions();
            in_.have(kLongestFixedOpcode);
        }
        const uint8_t* at = in_.at;
        if (at >= in_.end) truncated();
        const size_t length = kOpcodeLengths.of[*at];
        if (at + length > in_.end) truncated();
        switch (*at) {
            case op::kProto:
                if (at[1] < 2 || at[1] > 5) malformed("not a pickle of protocol 2 to 5");
                break;
            case op::kFrame: break;
            case op::kNone: push(Value::of(Kind::None, 0)); break;
            case op::kNewTrue: push(Value::of(Kind::Bool, 1)); break;
            case op::kNewFalse: push(Value::of(Kind::Bool, 0)); break;
            case op::kBinInt1: push(Value::integer(at[1])); break;
            case op::kBinInt2: push(Value::integer(load<uint16_t>(at + 1))); break;
            case op::kBinInt: push(Value::integer(load<int32_t>(at + 1))); break;
            case op::kLong1: long_integer(2, at[1]); continue;
            case op::kLong4: long_integer(5, load<uint32_t>(at + 1)); continue;
            case op::kBinFloat: {  // big-endian
                s_.floats.push_back(big_endian_double(at + 1));
                push(Value::of(Kind::Float, s_.floats.size() - 1));
                break;
            }
            case op::kShortBinUnicode: text(Kind::Text, 2, at[1]); continue;
            case op::kBinUnicode: text(Kind::Text, 5, load<uint32_t>(at + 1)); continue;
            case op::kBinUnicode8: text(Kind::Text, 9, load<uint64_t>(at + 1)); continue;
            case op::kShortBinString: text(Kind::Text, 2, at[1]); continue;
            case op::kBinString: text(Kind::Text, 5, load<uint32_t>(at + 1)); continue;
            case op::kShortBinBytes: text(Kind::Bytes, 2, at[1]); continue;
            case op::kBinBytes: text(Kind::Bytes, 5, load<uint32_t>(at + 1)); continue;
            case op::kBinBytes8: text(Kind::Bytes, 9, load<uint64_t>(at + 1)); continue;
            case op::kByteArray8: text(Kind::Bytes, 9, load<uint64_t>(at + 1)); continue;
            case op::kEmptyDict:
                if (const size_t taken = repeated_event()) {
                    opcodes += taken;
                    continue;
                }
                push(rows_.new_container(Shape::EmptyDict));
                break;
            case op::kEmptyList: push(rows_.new_container(Shape::EmptyList)); break;
            case op::kEmptyTuple: tuple(0); break;
            case op::kTuple1: tuple(1); break;
            case op::kTuple2: tuple(2); break;
            case op::kTuple3: tuple(3); break;
            case op::kTuple: {
                const size_t mark = pop_mark();
                tuple(stack_.size() - mark);
                break;
            }
            case op::kMark:
                if (marks_.size() >= kOpenMarks) throw Stop{VL_LIMIT, "containers nested too deep"};
                marks_.push_back(stack_.size());
                break;
            case op::kAppend: {
                const Value item = pop();
                if (stack_.size() <= floor()) malformed("an item without a list");
                rows_.append(stack_.back(), &item, 1);
                break;
            }
            case op::kAppends: {
                const size_t mark = pop_mark();
                if (mark <= floor()) malformed("items without a list");
                rows_.append(stack_[mark - 1], stack_.data() + mark, stack_.size() - mark);
                stack_.truncate(mark);
                break;
            }
            case op::kSetItem: {
                const Value value = pop(), key = pop();
                if (stack_.size() <= floor()) malformed("an item without a dict");
                const Value pair[2] = {key, value};
                set_items(stack_.back(), pair, 2);
                break;
            }
            case op::kSetItems: {
                const size_t mark = pop_mark();
                if (mark <= floor()) malformed("items without a dict");
                if ((stack_.size() - mark) % 2 != 0) malformed("a key without a value");
                set_items(stack_[mark - 1], stack_.data() + mark, stack_.size() - mark);
                stack_.truncate(mark);
                break;
            }
            case op::kMemoize: memoize(memo_.size(), opcodes); break;
            case op::kBinPut: memoize(at[1], opcodes); break;
            case op::kLongBinPut: memoize(load<uint32_t>(at + 1), opcodes); break;
            case op::kBinGet: recall(at[1]); break;
            case op::kLongBinGet: recall(load<uint32_t>(at + 1)); break;
            case op::kStop:
                if (stack_.size() != 1 || !marks_.empty())
                    malformed("the file stops inside a container");
                return;
            case op::kGlobal:
            case op::kStackGlobal:
            case op::kReduce:
            case op::kBuild:
            case op::kInst:
            case op::kObj:
            case op::kNewObj:
            case op::kNewObjEx:
            case op::kPersId:
            case op::kBinPersId:
            case op::kExt1:
            case op::kExt2:
            case op::kExt4:
            case op::kNextBuffer:
            case op::kReadonlyBuffer: {
                throw Stop{VL_UNSAFE, "it would import or call something when loaded"};
            }
            default: malformed("an opcode that no snapshot holds");
        }
        in_.at = at + length;
    }
}

// The number of opcodes of an event that was read in one go; 0 where there is none.
size_t Machine::repeated_event() {
    if (stack_.empty()) return 0;
    Value event;
    const size_t taken = repeated_.read_event(event);
    if (taken != 0) push(event);
    return taken;
}

void Machine::text(Kind kind, size_t header, uint64_t length) {
    if (length > (uint64_t{1} << 32)) throw Stop{VL_LIMIT, "a text of more than 4 GiB"};
    if (!in_.have(header + length)) truncated();
    const auto* bytes = reinterpret_cast<const char*>(in_.at + header);
    push(Value::of(kind, s_.strings.id_of(bytes, length)));
    in_.at += header + length;
}

void Machine::integer(int64_t number) {
    if (fits_inline(number)) return push(Value::integer(number));
    s_.wide.push_back(number);
    push(Value::of(Kind::WideInt, s_.wide.size() - 1));
}

void Machine::long_integer(size_t header, uint64_t length) {
    if (length > (uint64_t{1} << 31) - 1) malformed("a number of negative length");
    if (!in_.have(header + length)) truncated();
    const uint8_t* bytes = in_.at + header;
    if (length <= 8) {
        uint64_t bits = 0;
        std::memcpy(&bits, bytes, length);
        const unsigned unused = 64 - 8 * static_cast<unsigned>(length);
        integer(length == 0 ? 0 : static_cast<int64_t>(bits << unused) >> unused);
    } else if (length == 9 && bytes[8] == 0) {
        s_.wide.push_back(load<int64_t>(bytes));
        push(Value::of(Kind::WideUint, s_.wide.size() - 1));
    } else {  // wider than any size or address: kept as text, so that an unknown field is not lost
        std::string hex = "0x";
        for (size_t i = length; i-- > 0;) {
            hex += "0123456789abcdef"[bytes[i] >> 4];
            hex += "0123456789abcdef"[bytes[i] & 15];
        }
        push(Value::of(Kind::Text, s_.strings.id_of(hex.data(), hex.size())));
    }
    in_.at += header + length;
}

void Machine::tuple(size_t count) {
    if (stack_.size() - floor() < count) malformed("a tuple of more values than there are");
    const Value tuple = rows_.new_tuple(stack_.data() + stack_.size() - count, count);
    stack_.truncate(stack_.size() - count);
    push(tuple);
}

void Machine::set_items(Value dict, const Value* pairs, size_t count) {
    const bool is_top = dict.bits == stack_[0].bits;
    rows_.set_items(dict, pairs, count, is_top);
}

void Machine::memoize(uint64_t index, uint64_t opcodes) {
    if (stack_.size() <= floor()) malformed("nothing to remember");
    if (index > opcodes) throw Stop{VL_LIMIT, "a memo index larger than the file justifies"};
    if (index < memo_.size()) {
        repeated_.forget_lists();
    } else {
        memo_.extend(index + 1, kNoMemo);
    }
    memo_[index] = stack_.back();
}

void Machine::recall(uint64_t index) {
    if (index >= memo_.size() || memo_[index].bits == kNoMemo.bits) {
        malformed("a memo entry that was never set");
    }
    push(memo_[index]);
}

// A byte or two make a container or a waiting value of many: no more of them than a real snapshot
// could have.
void Machine::check_proportions() const {
    const size_t most =
        kContainersAtLeast + static_cast<size_t>(in_.offset(in_.at)) / kBytesPerContainer;
    if (s_.objects.size() > most)
        throw Stop{VL_LIMIT, "more containers than a file of this size justifies"};
    if (stack_.size() > most)
        throw Stop{VL_LIMIT, "more open values than a file of this size justifies"};
}

}  // namespace

void read_pickle(Snapshot& snapshot, vl_read_function read, void* context) {
    PickleStream in(read, context);
    Machine machine(snapshot, in);
    const auto note = [&](int32_t code, const char* message) {
        snapshot.status.code = code;
        snapshot.status.offset = in.at == nullptr ? 0 : in.offset(in.at);
        std::snprintf(snapshot.status.message, sizeof snapshot.status.message, "%s", message);
    };
    try {
        snapshot.resolve(machine.read());
    } catch (const Stop& stop) {
        note(stop.code, stop.message);
    } catch (const std::bad_alloc&) {
        note(VL_NO_MEMORY, "not enough memory to read it");
    }
    if (snapshot.status.code == VL_WHOLE && machine.was_truncated())
        note(VL_TRUNCATED, "the file ends early");
}

}  // namespace vl
