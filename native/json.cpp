// Values as JSON text, within bounds: a small pickle can describe an enormous value by sharing its
// parts.

#include <cmath>
#include <cstdio>
#include <cstring>

#include "snapshot.h"

namespace vl {
namespace {

constexpr int kDepth = 64;

class Writer {
  public:
    Writer(const Snapshot& snapshot, size_t capacity, std::string& out)
        : s_(snapshot), capacity_(capacity), out_(out) {}

    bool write(Value value, int depth = 0) {
        if (depth > kDepth || out_.size() > capacity_) return false;
        switch (value.kind()) {
            case Kind::None: out_ += "null"; return true;
            case Kind::Bool: out_ += value.payload() ? "true" : "false"; return true;
            case Kind::Int:
            case Kind::WideInt: {
                int64_t whole = 0;
                s_.as_integer(value, whole);
                out_ += std::to_string(whole);
                return true;
            }
            case Kind::WideUint:
                out_ += std::to_string(static_cast<uint64_t>(s_.wide[value.payload()]));
                return true;
            case Kind::Float: {
                const double real = s_.floats[value.payload()];
                if (std::isfinite(real)) {
                    decimal(real);
                } else {
                    out_ += "null";
                }
                return true;
            }
            case Kind::Text:
            case Kind::Bytes: text(s_.text(static_cast<uint32_t>(value.payload()))); return true;
            case Kind::Object: return object(s_.objects[value.payload()], depth);
        }
        return false;
    }

  private:
    const Snapshot& s_;
    const size_t capacity_;
    std::string& out_;

    // printf writes the comma, or whatever else, that the program's locale has for a point.
    void decimal(double number) {
        char digits[40];
        std::snprintf(digits, sizeof digits, "%.17g", number);
        for (const char* c = digits; *c != '\0'; ++c) {
            if (std::strchr("0123456789+-e", *c) != nullptr) {
                out_ += *c;
            } else if (out_.back() != '.') {
                out_ += '.';
            }
        }
    }

    // Bytes above 0x7f pass unchanged: the Python side decodes, replacing what is no UTF-8.
    void text(std::string_view bytes) {
        char escape[8];
        out_ += '"';
        for (const char c : bytes) {
            if (out_.size() > capacity_) return;
            if (c == '"' || c == '\\') {
                out_ += '\\';
                out_ += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
                out_ += escape;
            } else {
                out_ += c;
            }
        }
        out_ += '"';
    }

    bool object(Object object, int depth) {
        switch (object.shape) {
            case Shape::EmptyDict: out_ += "{}"; return true;
            case Shape::EmptyList: out_ += "[]"; return true;
            case Shape::List:
            case Shape::Tuple: {
                char before = '[';
                for (const Value item : s_.lists[object.index]) {
                    out_ += before;
                    before = ',';
                    if (!write(item, depth + 1)) return false;
                }
                if (before == '[') out_ += before;
                out_ += ']';
                return true;
            }
            case Shape::Dict: {
                char before = '{';
                for (const auto& [key, value] : s_.dicts[object.index]) {
                    out_ += before;
                    before = ',';
                    if (key.kind() == Kind::Text) {
                        text(s_.text(static_cast<uint32_t>(key.payload())));
                    } else {  // JSON keys are texts: a number or pair becomes the text of itself
                        std::string inner;
                        if (!Writer(s_, capacity_, inner).write(key, depth + 1)) return false;
                        text(inner);
                    }
                    out_ += ':';
                    if (!write(value, depth + 1)) return false;
                }
                out_ += '}';
                return true;
            }
            case Shape::Frame: frame(object.index); return true;
            case Shape::Stack: {
                char before = '[';
                for (uint64_t i = s_.stacks.starts[object.index];
                     i < s_.stacks.starts[object.index + 1]; ++i) {
                    if (out_.size() > capacity_) return false;
                    out_ += before;
                    before = ',';
                    frame(s_.stacks.items[i]);
                }
                if (before == '[') out_ += before;
                out_ += ']';
                return true;
            }
            default: out_ += "null"; return true;  // a row of a table: it has columns of its own
        }
    }

    void frame(uint32_t row) {
        const auto named = [this](const char* key, uint32_t id) {
            out_ += key;
            if (id == kNone) {
                out_ += "null";
            } else {
                text(s_.text(id));
            }
        };
        named("{\"filename\":", s_.frames.file[row]);
        named(",\"name\":", s_.frames.name[row]);
        out_ += ",\"line\":" + std::to_string(s_.frames.line[row]) + "}";
    }
};

}  // namespace

bool write_json(const Snapshot& snapshot, Value value, size_t capacity, std::string& out) {
    return Writer(snapshot, capacity, out).write(value) && out.size() <= capacity;
}

}  // namespace vl
