// A growing array of plain numbers. Unlike std::vector it grows by realloc, which moves pages
// instead of copying them: columns of a million rows are the bulk of what a reader writes.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace vl {

template <typename T>
class Column {
    static_assert(std::is_trivially_copyable<T>::value, "a column holds plain numbers");

  public:
    Column() = default;
    Column(Column&& other) noexcept { swap(other); }
    Column& operator=(Column&& other) noexcept {
        swap(other);
        return *this;
    }
    Column(const Column&) = delete;
    Column& operator=(const Column&) = delete;
    ~Column() { std::free(data_); }

    size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T* data() { return data_; }
    const T* data() const { return data_; }
    T& operator[](size_t row) { return data_[row]; }
    const T& operator[](size_t row) const { return data_[row]; }
    T& back() { return data_[size_ - 1]; }
    const T* begin() const { return data_; }
    const T* end() const { return data_ + size_; }

    void push_back(T value) {
        if (size_ == room_) grow(size_ + 1);
        data_[size_++] = value;
    }
    void append(const T* values, size_t count) {
        if (room_ - size_ < count) grow(size_ + count);
        for (size_t i = 0; i < count; ++i) data_[size_ + i] = values[i];
        size_ += count;
    }
    void extend(size_t size, T value) {
        if (size > room_) grow(size);
        while (size_ < size) data_[size_++] = value;
    }
    void truncate(size_t size) { size_ = size; }
    void clear() { size_ = 0; }

  private:
    T* data_ = nullptr;
    size_t size_ = 0, room_ = 0;

    void grow(size_t least) {
        size_t room = room_ < 16 ? 16 : 2 * room_;
        if (room < least) room = least;
        void* larger = std::realloc(data_, room * sizeof(T));
        if (larger == nullptr) throw std::bad_alloc();
        data_ = static_cast<T*>(larger);
        room_ = room;
    }
    void swap(Column& other) {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(room_, other.room_);
    }
};

}  // namespace vl
