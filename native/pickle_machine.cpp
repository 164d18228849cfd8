// The opcode machine: runs the value opcodes of pickle protocols 2 to 5 and fills the tables of a Snapshot.
//
// It knows no opcode that imports, calls or builds; meeting one ends the reading. Memory stays within a
// small multiple of the bytes read so far, whatever the bytes claim: a memo index may not exceed the number of
// opcodes seen, a string is read before room for it is made, containers and waiting values are counted.
// Opcode values: CPython, Lib/pickletools.py.

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>

#include "snapshot.h"

namespace vl {
namespace {

constexpr size_t kLongestFixedOpcode = 16;   // bytes that every opcode with fixed arguments fits in
constexpr size_t kChunk = size_t{1} << 16;
constexpr size_t kOpenMarks = 1000;          // snapshots nest 7 deep
constexpr size_t kBytesPerContainer = 8;     // at least; real snapshots: 23 to 50, and as many for a value that waits
constexpr size_t kMostKeys = 64;             // of a dict that is looked at again: rows have 6 to 13
constexpr size_t kContainersAtLeast = size_t{1} << 18;

class Stream {
  public:
    Stream(vl_read_function read, void* context) : read_(read), context_(context), buffer_(kChunk) {}

    const uint8_t* at = nullptr;
    const uint8_t* end = nullptr;

    int64_t offset(const uint8_t* position) const { return base_ + (position - buffer_.data()); }

    // True when `count` bytes lie at `at`. Room grows only as bytes really arrive.
    bool have(size_t count) {
        while (static_cast<size_t>(end - at) < count && !exhausted_) refill();
        return static_cast<size_t>(end - at) >= count;
    }

  private:
    vl_read_function read_;
    void* context_;
    std::vector<uint8_t> buffer_;
    int64_t base_ = 0;
    bool exhausted_ = false;

    void refill() {
        const size_t left = at == nullptr ? 0 : static_cast<size_t>(end - at);
        if (at != nullptr) {
            base_ += at - buffer_.data();
            std::memmove(buffer_.data(), at, left);
        }
        if (buffer_.size() - left < kChunk / 2 + kLongestFixedOpcode) buffer_.resize(2 * buffer_.size());
        const auto room = static_cast<int64_t>(buffer_.size() - left - kLongestFixedOpcode);
        const int64_t got = read_(context_, buffer_.data() + left, room);
        if (got < 0 || got > room) throw Stop{VL_READ_FAILED, "the stream could not be read"};
        exhausted_ = got == 0;
        at = buffer_.data();
        end = at + left + got;
        std::memset(buffer_.data() + left + got, 0, kLongestFixedOpcode);  // the last opcode may look past the end
    }
};

template <typename T>
T load(const uint8_t* at) {  // pickles are little-endian, as is every platform that vramlens is built for
    T number;
    std::memcpy(&number, at, sizeof number);
    return number;
}

// Bytes of an opcode with its fixed arguments; for texts and long numbers, the part before their bytes.
struct Lengths {
    uint8_t of[256];
    constexpr Lengths() : of() {
        for (int op = 0; op < 256; ++op) of[op] = 1;
        set(2, {0x80, 'K', 0x8a, 0x8c, 'U', 'C', 'q', 'h'});
        set(3, {'M'});
        set(5, {'J', 0x8b, 'X', 'T', 'B', 'r', 'j'});
        set(9, {0x95, 'G', 0x8d, 0x8e, 0x96});
    }

  private:
    constexpr void set(uint8_t length, std::initializer_list<int> opcodes) {
        for (const int op : opcodes) of[op] = length;
    }
};
constexpr Lengths kLengths;

class Machine {
  public:
    Machine(Snapshot& snapshot, Stream& in) : s_(snapshot), in_(in) {}

    // The value of the whole pickle, or of as much of it as there is.
    Value read() {
        try {
            run();
        } catch (const Stop& stop) {
            if (stop.code != VL_TRUNCATED) throw;
            truncated_ = true;
            recover();
        }
        return stack_.empty() ? Value::of(Kind::None, 0) : stack_[0];
    }
    bool was_truncated() const { return truncated_; }

  private:
    bool truncated_ = false;
    Snapshot& s_;
    Stream& in_;
    Column<Value> stack_;
    std::vector<size_t> marks_;
    Column<Value> memo_;
    std::vector<uint32_t> free_lists_;  // stores of lists that became stacks, to be used again
    std::vector<uint32_t> run_;         // the frames of the stack being interned
    std::vector<uint64_t> frame_key_;

    // Lists of frames as they are written, and which one followed which: see remembered_frames.
    struct Written {
        std::string bytes;  // up to the byte that ends it, or for an empty list the one that follows it
        size_t length;
        uint32_t stack, next;
    };
    std::vector<Written> written_;
    std::vector<uint32_t> written_of_stack_;
    uint32_t last_list_ = kNone, last_text_ = kNone;
    Value last_pair_ = Value::nothing(), last_pair_first_ = last_pair_, last_pair_second_ = last_pair_;

    [[noreturn]] static void malformed(const char* what) { throw Stop{VL_MALFORMED, what}; }
    [[noreturn]] static void truncated() { throw Stop{VL_TRUNCATED, "the file ends early"}; }

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

    Value new_object(Shape shape, uint32_t index = 0) {
        if (s_.objects.size() >= kNone) throw Stop{VL_LIMIT, "more than four billion containers"};
        s_.objects.push_back({shape, index});
        return Value::of(Kind::Object, s_.objects.size() - 1);
    }
    Object& object(Value value) {
        if (value.kind() != Kind::Object) malformed("an item is added to something that is no container");
        return s_.objects[value.payload()];
    }
    uint32_t new_list() {
        if (!free_lists_.empty()) {
            const uint32_t index = free_lists_.back();
            free_lists_.pop_back();
            return index;
        }
        s_.lists.emplace_back();
        return static_cast<uint32_t>(s_.lists.size() - 1);
    }

    void run();
    void text(Kind kind, size_t header, uint64_t length);
    void integer(int64_t number);
    void long_integer(size_t header, uint64_t length);
    void tuple(size_t count);
    void append(Value list, const Value* items, size_t count);
    void set_items(Value dict, const Value* pairs, size_t count);
    void memoize(uint64_t index, uint64_t opcodes);
    void recall(uint64_t index);
    void recover();
    void check_proportions() const;

    size_t event_at_once();
    bool simple_value(const uint8_t*& at, Value& value) const;
    bool remembered_text(const uint8_t*& at, Value& value);
    bool remembered_frames(const uint8_t*& at, Value& value);
    Shape shape_of(const Value* pairs, size_t count) const;
    void set_field(Object row, Value key, Value value);
    void set_event(uint32_t row, uint32_t field, Value value);
    void set_segment(uint32_t row, uint32_t field, Value value);
    void set_block(uint32_t row, uint32_t field, Value value);
    void set_annotation(uint32_t row, uint32_t field, Value value);
    uint32_t new_row(Shape shape);
    uint32_t frame(const Value* pairs, size_t count);
    bool is_frame(Value value);
    bool intern_stack(Value value, uint32_t& stack);
    bool pool(Value value, uint32_t& pool) const;
    uint8_t action_of(uint32_t name) const;

    template <typename T>
    bool number(Value value, T& out) const {
        int64_t wide = 0;
        if (!s_.as_integer(value, wide)) return false;
        const auto narrow = static_cast<T>(wide);
        if (sizeof(T) < sizeof wide && static_cast<int64_t>(narrow) != wide) return false;  // too wide for the column
        out = narrow;
        return true;
    }
    static bool name(Value value, uint32_t& out) {
        if (value.kind() != Kind::Text) return false;
        out = static_cast<uint32_t>(value.payload());
        return true;
    }
};

void Machine::run() {
    if (!in_.have(1)) throw Stop{VL_MALFORMED, "the file is empty"};
    in_.have(2);
    if (in_.at[0] != 0x80) throw Stop{VL_MALFORMED, "not a pickle of protocol 2 to 5"};
    uint64_t opcodes = 0;
    for (;; ++opcodes) {
        if (static_cast<size_t>(in_.end - in_.at) < kLongestFixedOpcode) {
            check_proportions();
            in_.have(kLongestFixedOpcode);
        }
        const uint8_t* at = in_.at;
        if (at >= in_.end) truncated();
        const size_t length = kLengths.of[*at];
        if (at + length > in_.end) truncated();
        switch (*at) {
            case 0x80:  // PROTO
                if (at[1] < 2 || at[1] > 5) malformed("not a pickle of protocol 2 to 5");
                break;
            case 0x95: break;                                                      // FRAME
            case 'N': push(Value::of(Kind::None, 0)); break;                       // NONE
            case 0x88: push(Value::of(Kind::Bool, 1)); break;                      // NEWTRUE
            case 0x89: push(Value::of(Kind::Bool, 0)); break;                      // NEWFALSE
            case 'K': push(Value::integer(at[1])); break;                          // BININT1
            case 'M': push(Value::integer(load<uint16_t>(at + 1))); break;         // BININT2
            case 'J': push(Value::integer(load<int32_t>(at + 1))); break;          // BININT
            case 0x8a: long_integer(2, at[1]); continue;                           // LONG1
            case 0x8b: long_integer(5, load<uint32_t>(at + 1)); continue;          // LONG4
            case 'G': {                                                            // BINFLOAT, big-endian
                uint64_t bits = 0;
                for (int i = 1; i <= 8; ++i) bits = bits << 8 | at[i];
                double number;
                std::memcpy(&number, &bits, 8);
                s_.floats.push_back(number);
                push(Value::of(Kind::Float, s_.floats.size() - 1));
                break;
            }
            case 0x8c: text(Kind::Text, 2, at[1]); continue;                       // SHORT_BINUNICODE
            case 'X': text(Kind::Text, 5, load<uint32_t>(at + 1)); continue;       // BINUNICODE
            case 0x8d: text(Kind::Text, 9, load<uint64_t>(at + 1)); continue;      // BINUNICODE8
            case 'U': text(Kind::Text, 2, at[1]); continue;                        // SHORT_BINSTRING
            case 'T': text(Kind::Text, 5, load<uint32_t>(at + 1)); continue;       // BINSTRING
            case 'C': text(Kind::Bytes, 2, at[1]); continue;                       // SHORT_BINBYTES
            case 'B': text(Kind::Bytes, 5, load<uint32_t>(at + 1)); continue;      // BINBYTES
            case 0x8e: text(Kind::Bytes, 9, load<uint64_t>(at + 1)); continue;     // BINBYTES8
            case 0x96: text(Kind::Bytes, 9, load<uint64_t>(at + 1)); continue;     // BYTEARRAY8
            case '}':                                                              // EMPTY_DICT
                if (const size_t done = event_at_once()) {
                    opcodes += done;
                    continue;
                }
                push(new_object(Shape::EmptyDict));
                break;
            case ']': push(new_object(Shape::EmptyList)); break;                   // EMPTY_LIST
            case ')': tuple(0); break;                                             // EMPTY_TUPLE
            case 0x85: tuple(1); break;                                            // TUPLE1
            case 0x86: tuple(2); break;                                            // TUPLE2
            case 0x87: tuple(3); break;                                            // TUPLE3
            case 't': {                                                            // TUPLE
                const size_t mark = pop_mark();
                tuple(stack_.size() - mark);
                break;
            }
            case '(':                                                              // MARK
                if (marks_.size() >= kOpenMarks) throw Stop{VL_LIMIT, "containers nested too deep"};
                marks_.push_back(stack_.size());
                break;
            case 'a': {                                                            // APPEND
                const Value item = pop();
                if (stack_.size() <= floor()) malformed("an item without a list");
                append(stack_.back(), &item, 1);
                break;
            }
            case 'e': {                                                            // APPENDS
                const size_t mark = pop_mark();
                if (mark <= floor()) malformed("items without a list");
                append(stack_[mark - 1], stack_.data() + mark, stack_.size() - mark);
                stack_.truncate(mark);
                break;
            }
            case 's': {                                                            // SETITEM
                const Value value = pop(), key = pop();
                if (stack_.size() <= floor()) malformed("an item without a dict");
                const Value pair[2] = {key, value};
                set_items(stack_.back(), pair, 2);
                break;
            }
            case 'u': {                                                            // SETITEMS
                const size_t mark = pop_mark();
                if (mark <= floor()) malformed("items without a dict");
                if ((stack_.size() - mark) % 2 != 0) malformed("a key without a value");
                set_items(stack_[mark - 1], stack_.data() + mark, stack_.size() - mark);
                stack_.truncate(mark);
                break;
            }
            case 0x94: memoize(memo_.size(), opcodes); break;                      // MEMOIZE
            case 'q': memoize(at[1], opcodes); break;                              // BINPUT
            case 'r': memoize(load<uint32_t>(at + 1), opcodes); break;             // LONG_BINPUT
            case 'h': recall(at[1]); break;                                        // BINGET
            case 'j': recall(load<uint32_t>(at + 1)); break;                       // LONG_BINGET
            case '.':                                                              // STOP
                if (stack_.size() != 1 || !marks_.empty()) malformed("the file stops inside a container");
                return;
            case 'c': case 0x93: case 'R': case 'b': case 'i': case 'o': case 0x81: case 0x92:
            case 'P': case 'Q': case 0x82: case 0x83: case 0x84: case 0x97: case 0x98: {
                // GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX PERSID BINPERSID EXT1 EXT2 EXT4
                // NEXT_BUFFER READONLY_BUFFER
                throw Stop{VL_UNSAFE, "it would import or call something when loaded"};
            }
            default: malformed("an opcode that no snapshot holds");
        }
        in_.at = at + length;
    }
}

// A value of fixed form: a small number or something remembered. False for all others.
inline bool Machine::simple_value(const uint8_t*& at, Value& value) const {
    size_t index = 0;
    switch (*at) {
        case 'K': value = Value::integer(at[1]), at += 2; return true;
        case 'M': value = Value::integer(load<uint16_t>(at + 1)), at += 3; return true;
        case 'J': value = Value::integer(load<int32_t>(at + 1)), at += 5; return true;
        case 0x8a: {
            const unsigned length = at[1];
            if (length == 0 || length > 7) return false;
            const unsigned unused = 64 - 8 * length;
            value = Value::integer(static_cast<int64_t>(load<uint64_t>(at + 2) << unused) >> unused);
            at += 2 + length;
            return true;
        }
        case 'h': index = at[1], at += 2; break;
        case 'j': index = load<uint32_t>(at + 1), at += 5; break;
        default: return false;
    }
    if (index >= memo_.size()) return false;
    value = memo_[index];
    return value.bits != Value::of(Kind::Object, kNone).bits;
}

// A short text and its memo, mostly the one that stood here in the event before.
inline bool Machine::remembered_text(const uint8_t*& at, Value& value) {
    const size_t length = at[1];
    if (static_cast<size_t>(in_.end - at) < length + kLongestFixedOpcode || at[2 + length] != 0x94) return false;
    const std::string_view bytes(reinterpret_cast<const char*>(at + 2), length);
    if (last_text_ == kNone || s_.text(last_text_) != bytes) last_text_ = s_.strings.id_of(bytes.data(), length);
    value = Value::of(Kind::Text, last_text_);
    memo_.push_back(value);
    at += length + 3;
    return true;
}

// A list of remembered frames: EMPTY_LIST, memo, MARK, frames, APPENDS. Programs repeat themselves, so the
// bytes are first compared with those of the last list, and of the one that followed it the time before.
inline bool Machine::remembered_frames(const uint8_t*& at, Value& value) {
    const auto left = static_cast<size_t>(in_.end - at);
    const auto is_here = [&](uint32_t guess) {
        return guess != kNone && written_[guess].bytes.size() < left &&
               std::memcmp(at, written_[guess].bytes.data(), written_[guess].bytes.size()) == 0;
    };
    uint32_t found = kNone;
    if (is_here(last_list_)) {
        found = last_list_;
    } else if (last_list_ != kNone && is_here(written_[last_list_].next)) {
        found = written_[last_list_].next;
    } else {
        if (left < kLongestFixedOpcode || at[1] != 0x94) return false;
        const uint8_t* end = at + 2;
        const bool marked = *end == '(';  // pickle sets no mark for a list of one, and writes nothing for an empty one
        if (marked) ++end;
        run_.clear();
        while (*end == 'h' || *end == 'j') {
            Value frame;
            if (!simple_value(end, frame) || frame.kind() != Kind::Object) return false;
            if (s_.objects[frame.payload()].shape != Shape::Frame) return false;
            run_.push_back(s_.objects[frame.payload()].index);
            if (!marked) break;
            if (static_cast<size_t>(in_.end - end) < kLongestFixedOpcode) return false;
        }
        // The byte that proves where the list ends is compared along with it.
        if (*end != (run_.empty() ? 'u' : marked ? 'e' : 'a') || (run_.empty() && marked)) return false;
        const uint32_t stack = s_.stacks.id_of(run_.data(), run_.size());
        written_of_stack_.resize(std::max<size_t>(written_of_stack_.size(), stack + size_t{1}), kNone);
        found = written_of_stack_[stack];
        const std::string bytes(reinterpret_cast<const char*>(at), static_cast<size_t>(end + 1 - at));
        if (found == kNone || written_[found].bytes != bytes) {
            found = written_of_stack_[stack] = static_cast<uint32_t>(written_.size());
            written_.push_back({bytes, bytes.size() - run_.empty(), stack, kNone});
        }
    }
    if (last_list_ != kNone && found != last_list_) written_[last_list_].next = found;
    last_list_ = found;
    value = new_object(Shape::Stack, written_[found].stack);
    memo_.push_back(value);
    at += written_[found].length;
    return true;
}

// Most of a snapshot are events that look alike: EMPTY_DICT, memo, MARK, keys from the memo with plain values, SETITEMS.
// This reads such a one in one go. Returns how many opcodes it took, at least; 0, with nothing changed, for all else.
size_t Machine::event_at_once() {
    constexpr size_t kMostPairs = 16;
    const uint8_t* at = in_.at;
    if (static_cast<size_t>(in_.end - at) < 4 * kLongestFixedOpcode || stack_.empty()) return 0;
    if (at[1] != 0x94 || at[2] != '(') return 0;
    at += 3;
    const size_t objects = s_.objects.size(), memo = memo_.size();
    const Value event = new_object(Shape::EmptyDict);
    memo_.push_back(event);
    Value pairs[2 * kMostPairs];
    size_t count = 0;
    bool plain = true;
    for (; plain && *at != 'u'; count += 2) {
        plain = count < 2 * kMostPairs && static_cast<size_t>(in_.end - at) >= 4 * kLongestFixedOpcode &&
                simple_value(at, pairs[count]) && pairs[count].kind() == Kind::Text;
        if (!plain) break;
        Value& value = pairs[count + 1];
        plain = *at == 0x8c ? remembered_text(at, value)
                : *at == ']' ? remembered_frames(at, value) : simple_value(at, value);
        plain = plain && static_cast<size_t>(in_.end - at) >= kLongestFixedOpcode;
    }
    if (!plain || count == 0 || pairs[0].payload() != kAction) {
        s_.objects.truncate(objects);
        memo_.truncate(memo);
        return 0;
    }
    const uint32_t row = new_row(Shape::Event);
    s_.objects[objects] = {Shape::Event, row};
    push(event);
    for (size_t i = 0; i < count; i += 2) set_event(row, static_cast<uint32_t>(pairs[i].payload()), pairs[i + 1]);
    in_.at = at + 1;
    return count + 4;
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
    const Value* items = stack_.data() + stack_.size() - count;
    Value made;
    if (count == 2 && last_pair_.bits != 0 && items[0].bits == last_pair_first_.bits &&
        items[1].bits == last_pair_second_.bits) {
        made = last_pair_;  // pool ids: one tuple an event, nearly always the same
    } else {
        const uint32_t index = new_list();
        s_.lists[index].assign(items, items + count);
        made = new_object(Shape::Tuple, index);
        if (count == 2) last_pair_ = made, last_pair_first_ = items[0], last_pair_second_ = items[1];
    }
    stack_.truncate(stack_.size() - count);
    push(made);
}

void Machine::append(Value list, const Value* items, size_t count) {
    Object& target = object(list);
    if (target.shape == Shape::EmptyList) {
        if (count == 0) return;
        const uint32_t index = new_list();
        target = {Shape::List, index};
    }
    if (target.shape != Shape::List) malformed("items are added to something that is no list");
    auto& store = s_.lists[target.index];
    store.insert(store.end(), items, items + count);
}

void Machine::memoize(uint64_t index, uint64_t opcodes) {
    if (stack_.size() <= floor()) malformed("nothing to remember");
    if (index > opcodes) throw Stop{VL_LIMIT, "a memo index larger than the file justifies"};
    if (index < memo_.size()) {  // overwritten: bytes that refer to it may mean something else from now on
        written_.clear(), written_of_stack_.clear();
        last_list_ = kNone;
    } else {
        memo_.extend(index + 1, Value::of(Kind::Object, kNone));
    }
    memo_[index] = stack_.back();
}

void Machine::recall(uint64_t index) {
    if (index >= memo_.size() || memo_[index].bits == Value::of(Kind::Object, kNone).bits) {
        malformed("a memo entry that was never set");
    }
    push(memo_[index]);
}

// A byte or two make a container or a waiting value of many: no more of them than a real snapshot could have.
void Machine::check_proportions() const {
    const size_t most = kContainersAtLeast + static_cast<size_t>(in_.offset(in_.at)) / kBytesPerContainer;
    if (s_.objects.size() > most) throw Stop{VL_LIMIT, "more containers than a file of this size justifies"};
    if (stack_.size() > most) throw Stop{VL_LIMIT, "more open values than a file of this size justifies"};
}

// What kind of row a dict is, from the one key that only this kind has.
Shape Machine::shape_of(const Value* pairs, size_t count) const {
    bool has_state = false, has_size = false;
    for (size_t i = 0; i < count; i += 2) {
        if (pairs[i].kind() != Kind::Text) continue;
        switch (pairs[i].payload()) {
            case kAction: return Shape::Event;
            case kFilename: return Shape::Frame;
            case kTotalSize: return Shape::Segment;
            case kStage: return Shape::Annotation;
            case kState: has_state = true; break;  // NCCL flight records have a state too, but no size
            case kSize: has_size = true; break;
            default: break;
        }
    }
    return has_state && has_size ? Shape::Block : Shape::Dict;
}

void Machine::set_items(Value dict, const Value* pairs, size_t count) {
    Object& target = object(dict);
    const bool is_top = dict.bits == stack_[0].bits;
    if (count == 0 && target.shape != Shape::Frame) return;
    switch (target.shape) {
        case Shape::EmptyDict: {
            Shape shape = is_top ? Shape::Dict : shape_of(pairs, count);
            if (shape == Shape::Frame) {
                if (count > 2) {
                    target = {Shape::Frame, frame(pairs, count)};
                    return;
                }
                shape = Shape::Dict;  // more keys may come: it becomes a frame when a stack takes it
            }
            target = {shape, new_row(shape)};
            break;
        }
        case Shape::Dict: {
            auto& held = s_.dicts[target.index];
            if (is_top || held.size() > kMostKeys) break;
            // Written one key at a time: once the telling key has come, it becomes a row.
            std::vector<Value> all;
            for (const auto& [key, value] : held) all.push_back(key), all.push_back(value);
            all.insert(all.end(), pairs, pairs + count);
            const Shape shape = shape_of(all.data(), all.size());
            if (shape == Shape::Dict || shape == Shape::Frame) break;
            held.clear();
            target = {shape, new_row(shape)};
            const Object row = target;
            for (size_t i = 0; i < all.size(); i += 2) set_field(row, all[i], all[i + 1]);
            return;
        }
        case Shape::Event: case Shape::Segment: case Shape::Block: case Shape::Annotation: break;
        default: malformed("pairs are added to something that is no dict, or to a frame in use");
    }
    const Object row = target;
    for (size_t i = 0; i < count; i += 2) set_field(row, pairs[i], pairs[i + 1]);
}

uint32_t Machine::new_row(Shape shape) {
    size_t row = 0;
    switch (shape) {
        case Shape::Event: {
            auto& t = s_.events;
            row = t.action.size();
            t.action.push_back(kOtherAction);
            t.address.push_back(0), t.size.push_back(0), t.stream.push_back(0), t.time_us.push_back(0);
            t.stack.push_back(kNone);
            break;
        }
        case Shape::Segment: {
            auto& t = s_.segments;
            row = t.device.size();
            t.device.push_back(0), t.address.push_back(0), t.total_size.push_back(0), t.stream.push_back(0);
            t.allocated_size.push_back(0), t.active_size.push_back(0), t.requested_size.push_back(0);
            t.type.push_back(kNone), t.pool.push_back(kNone), t.stack.push_back(kNone);
            t.is_expandable.push_back(0), t.blocks.push_back(0);
            break;
        }
        case Shape::Block: {
            auto& t = s_.blocks;
            row = t.address.size();
            t.address.push_back(0), t.size.push_back(0), t.requested_size.push_back(0);
            t.state.push_back(kNone), t.stack.push_back(kNone);
            break;
        }
        case Shape::Annotation: {
            auto& t = s_.annotations;
            row = t.stage.size();
            t.stage.push_back(kNone), t.name.push_back(kNone), t.device.push_back(-1), t.time_us.push_back(0);
            break;
        }
        default:
            row = s_.dicts.size();
            s_.dicts.emplace_back();
    }
    if (row >= kNone) throw Stop{VL_LIMIT, "more than four billion rows"};
    return static_cast<uint32_t>(row);
}

void Machine::set_field(Object target, Value key, Value value) {
    uint32_t field = kNone;
    if (!name(key, field) && target.shape != Shape::Dict) malformed("a key that is no text");
    switch (target.shape) {
        case Shape::Event: return set_event(target.index, field, value);
        case Shape::Segment: return set_segment(target.index, field, value);
        case Shape::Block: return set_block(target.index, field, value);
        case Shape::Annotation: return set_annotation(target.index, field, value);
        default: s_.dicts[target.index].emplace_back(key, value);
    }
}

// In the four functions below a known field of an unexpected type goes where unknown fields go: nothing is lost.
void Machine::set_event(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.events;
    uint32_t id = kNone;
    switch (field) {
        case kAction:
            if (!name(value, id)) break;
            t.action[row] = action_of(id);
            if (t.action[row] == kOtherAction) t.other_action.set(row, id);
            return;
        case kAddr: if (number(value, t.address[row])) return; break;
        case kSize: if (number(value, t.size[row])) return; break;
        case kStream: if (number(value, t.stream[row])) return; break;
        case kTimeUs: if (number(value, t.time_us[row])) return; break;
        case kFrames: if (intern_stack(value, t.stack[row])) return; break;
        case kCompileContext: if (name(value, id)) return t.compile_context.set(row, id); break;
        case kUserMetadata: if (name(value, id)) return t.user_metadata.set(row, id); break;
        case kPoolId: if (pool(value, id)) return t.pool.set(row, id); break;
        case kDeviceFree: {
            uint64_t free_bytes = 0;
            if (!number(value, free_bytes)) break;
            t.oom_row.push_back(row), t.oom_device_free.push_back(free_bytes);
            return;
        }
        default: break;
    }
    t.extras.add(row, field, value);
}

void Machine::set_segment(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.segments;
    switch (field) {
        case kDevice: if (number(value, t.device[row])) return; break;
        case kAddress: if (number(value, t.address[row])) return; break;
        case kTotalSize: if (number(value, t.total_size[row])) return; break;
        case kAllocatedSize: if (number(value, t.allocated_size[row])) return; break;
        case kActiveSize: if (number(value, t.active_size[row])) return; break;
        case kRequestedSize: if (number(value, t.requested_size[row])) return; break;
        case kStream: if (number(value, t.stream[row])) return; break;
        case kSegmentType: if (name(value, t.type[row])) return; break;
        case kSegmentPoolId: if (pool(value, t.pool[row])) return; break;
        case kFrames: if (intern_stack(value, t.stack[row])) return; break;
        case kIsExpandable:
            if (value.kind() != Kind::Bool) break;
            t.is_expandable[row] = static_cast<uint8_t>(value.payload());
            return;
        case kBlocks: t.blocks[row] = value.bits; return;
        default: break;
    }
    t.extras.add(row, field, value);
}

void Machine::set_block(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.blocks;
    switch (field) {
        case kAddress: if (number(value, t.address[row])) return; break;
        case kSize: if (number(value, t.size[row])) return; break;
        case kRequestedSize: if (number(value, t.requested_size[row])) return; break;
        case kState: if (name(value, t.state[row])) return; break;
        case kFrames: if (intern_stack(value, t.stack[row])) return; break;
        case kHistory: {  // before PyTorch 2.1: [{addr, real_size, frames}], the latest first
            if (value.kind() != Kind::Object) break;
            const Object list = s_.objects[value.payload()];
            if (list.shape != Shape::List || s_.lists[list.index].empty()) break;
            const Value first = s_.lists[list.index].front();
            if (first.kind() != Kind::Object || s_.objects[first.payload()].shape != Shape::Dict) break;
            const auto& entry = s_.dicts[s_.objects[first.payload()].index];
            if (entry.size() > kMostKeys) break;
            for (const auto& [key, held] : entry) {
                if (key.kind() != Kind::Text) continue;
                if (key.payload() == kRealSize) number(held, t.requested_size[row]);
                if (key.payload() == kAddr) number(held, t.address[row]);
                if (key.payload() == kFrames) intern_stack(held, t.stack[row]);
            }
            return;
        }
        default: break;
    }
    t.extras.add(row, field, value);
}

void Machine::set_annotation(uint32_t row, uint32_t field, Value value) {
    auto& t = s_.annotations;
    switch (field) {
        case kStage: if (name(value, t.stage[row])) return; break;
        case kName: if (name(value, t.name[row])) return; break;
        case kDevice: if (number(value, t.device[row])) return; break;
        case kTimeUs: if (number(value, t.time_us[row])) return; break;
        default: break;
    }
    t.extras.add(row, field, value);
}

// Equal frames are stored once; a frame with fields beyond the three is equal only if those are.
uint32_t Machine::frame(const Value* pairs, size_t count) {
    auto& t = s_.frames;
    uint32_t file = kNone, function = kNone;
    int64_t line = 0;
    frame_key_.assign(3, 0);
    for (size_t i = 0; i < count; i += 2) {
        uint32_t field = kNone;
        if (!name(pairs[i], field)) malformed("a key that is no text");
        const Value value = pairs[i + 1];
        if (field == kFilename && name(value, file)) continue;
        if (field == kName && name(value, function)) continue;
        if (field == kLine && number(value, line)) continue;
        frame_key_.push_back(field), frame_key_.push_back(value.bits);
    }
    frame_key_[0] = file, frame_key_[1] = function, frame_key_[2] = static_cast<uint64_t>(line);
    const uint32_t row = t.keys.id_of(frame_key_.data(), frame_key_.size());
    if (row == t.file.size()) {
        t.file.push_back(file), t.name.push_back(function), t.line.push_back(line);
        for (size_t i = 3; i < frame_key_.size(); i += 2) {
            t.extras.add(row, static_cast<uint32_t>(frame_key_[i]), Value{frame_key_[i + 1]});
        }
    }
    return row;
}

// Whether it is a frame; a dict that was written one key at a time becomes one now.
bool Machine::is_frame(Value value) {
    if (value.kind() != Kind::Object) return false;
    Object& object = s_.objects[value.payload()];
    if (object.shape != Shape::Dict) return object.shape == Shape::Frame;
    auto& held = s_.dicts[object.index];
    std::vector<Value> pairs;
    if (held.size() <= kMostKeys) {
        for (const auto& [key, item] : held) pairs.push_back(key), pairs.push_back(item);
    }
    if (shape_of(pairs.data(), pairs.size()) != Shape::Frame) return false;
    object = {Shape::Frame, frame(pairs.data(), pairs.size())};
    held.clear();
    return true;
}

// The id of a list of frames. The list's own storage is given back: equal stacks are stored once.
bool Machine::intern_stack(Value value, uint32_t& stack) {
    if (value.kind() != Kind::Object) return false;
    const uint32_t id = static_cast<uint32_t>(value.payload());
    const Object list = s_.objects[id];
    if (list.shape == Shape::Stack) {
        stack = list.index;
        return true;
    }
    run_.clear();
    if (list.shape == Shape::List && !list.is_no_stack) {
        for (const Value item : s_.lists[list.index]) {
            if (!is_frame(item)) {
                s_.objects[id].is_no_stack = true;  // not looked through again for every event that names it
                return false;
            }
            run_.push_back(s_.objects[item.payload()].index);
        }
        s_.lists[list.index].clear();
        free_lists_.push_back(list.index);
    } else if (list.shape != Shape::EmptyList) {
        return false;
    }
    stack = s_.stacks.id_of(run_.data(), run_.size());
    s_.objects[id] = {Shape::Stack, stack};
    return true;
}

bool Machine::pool(Value value, uint32_t& pool) const {
    if (value.kind() != Kind::Object || s_.objects[value.payload()].shape != Shape::Tuple) return false;
    const auto& items = s_.lists[s_.objects[value.payload()].index];
    int64_t pair[2] = {0, 0};
    if (items.size() != 2 || !s_.as_integer(items[0], pair[0]) || !s_.as_integer(items[1], pair[1])) return false;
    pool = s_.pools.id_of(pair, 2);
    return true;
}

uint8_t Machine::action_of(uint32_t id) const {
    static constexpr std::string_view kNames[] = {"alloc", "free_requested", "free_completed", "segment_alloc",
                                                  "segment_free", "segment_map", "segment_unmap", "oom", "snapshot"};
    const std::string_view text = s_.text(id);
    for (uint8_t i = 0; i < kOtherAction; ++i) {
        if (text == kNames[i]) return i;
    }
    return kOtherAction;
}

// The stream ended inside containers: closes them from the innermost, keeping every item that is whole.
void Machine::recover() {
    const auto open = [this](Value value) {
        if (value.kind() == Kind::Object) s_.unfinished.push_back(static_cast<uint32_t>(value.payload()));
    };
    const auto is_list = [this](Value value) {
        if (value.kind() != Kind::Object) return false;
        const Shape shape = s_.objects[value.payload()].shape;
        return shape == Shape::List || shape == Shape::EmptyList;
    };
    const auto is_blank = [this](Value value) {
        return value.kind() == Kind::Object && s_.objects[value.payload()].shape == Shape::EmptyDict;
    };
    if (!stack_.empty()) open(stack_.back());  // more items may have been about to come
    for (;;) {
        const size_t mark = floor();
        const bool bottom = marks_.empty();
        // A list of one item is written without a mark: list, item, APPEND. Hand such items to their list.
        while (stack_.size() > mark + 1 && is_list(stack_[stack_.size() - 2])) {
            const Value item = stack_.back();
            const size_t depth = stack_.size() - mark;
            const bool in_list = mark != 0 && is_list(stack_[mark - 1]);
            if (in_list || (depth % 2 == 0 && !bottom)) break;  // siblings, or a whole pair of a dict
            stack_.truncate(stack_.size() - 1);
            open(stack_.back());
            if (!is_blank(item)) append(stack_.back(), &item, 1);
        }
        if (bottom) return;
        const Value container = mark == 0 ? Value::of(Kind::None, 0) : stack_[mark - 1];
        marks_.pop_back();
        if (container.kind() == Kind::Object) {
            std::vector<Value> items(stack_.begin() + mark, stack_.end());
            const Shape shape = s_.objects[container.payload()].shape;
            open(container);
            if (is_list(container)) {
                items.erase(std::remove_if(items.begin(), items.end(), is_blank), items.end());
                append(container, items.data(), items.size());
            } else if (mark == 1 && (shape == Shape::EmptyDict || shape == Shape::Dict)) {  // the top level
                if (items.size() % 2 != 0) items.pop_back();
                set_items(container, items.data(), items.size());
            }
        }
        stack_.truncate(mark);
    }
}

}  // namespace

void read_pickle(Snapshot& snapshot, vl_read_function read, void* context) {
    Stream in(read, context);
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
    if (snapshot.status.code == VL_WHOLE && machine.was_truncated()) note(VL_TRUNCATED, "the file ends early");
}

}  // namespace vl
