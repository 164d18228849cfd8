// The bytes of a pickle as they arrive: room grows only with what was really read.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "snapshot.h"

namespace vl {

constexpr size_t kLongestFixedOpcode = 16;  // bytes that every opcode with fixed arguments fits in

class PickleStream {
  public:
    PickleStream(vl_read_function read, void* context)
        : read_(read), context_(context), buffer_(kChunk) {}

    const uint8_t* at = nullptr;
    const uint8_t* end = nullptr;

    int64_t offset(const uint8_t* position) const { return base_ + (position - buffer_.data()); }

    // True when `count` bytes lie at `at`. Room grows only as bytes really arrive.
    bool have(size_t count) {
        while (ahead() < count && !exhausted_) refill();
        return ahead() >= count;
    }

    size_t ahead() const { return static_cast<size_t>(end - at); }

  private:
    static constexpr size_t kChunk = size_t{1} << 16;

    vl_read_function read_;
    void* context_;
    std::vector<uint8_t> buffer_;
    int64_t base_ = 0;
    bool exhausted_ = false;

    void refill() {
        const size_t unread = at == nullptr ? 0 : ahead();
        if (at != nullptr) {
            base_ += at - buffer_.data();
            std::memmove(buffer_.data(), at, unread);
        }
        if (buffer_.size() - unread < kChunk / 2 + kLongestFixedOpcode)
            buffer_.resize(2 * buffer_.size());
        const auto room = static_cast<int64_t>(buffer_.size() - unread - kLongestFixedOpcode);
        const int64_t got = read_(context_, buffer_.data() + unread, room);
        if (got < 0 || got > room) throw Stop{VL_READ_FAILED, "the stream could not be read"};
        exhausted_ = got == 0;
        at = buffer_.data();
        end = at + unread + got;
        std::memset(buffer_.data() + unread + got, 0,
                    kLongestFixedOpcode);  // the last opcode may look past the end
    }
};

template <typename T>
T load(const uint8_t*
           at) {  // pickles are little-endian, as is every platform that vramlens is built for
    T number;
    std::memcpy(&number, at, sizeof number);
    return number;
}

}  // namespace vl
