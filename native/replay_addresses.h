// Where the driver puts cudaMalloc segments: their addresses decide ties among equal free blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace vl::replay {

enum class AddressOrder : int32_t {
    kDriver = 0,      // a model of what drivers of 2025-26 do on an H200 (docs/replay.md)
    kAscending = 1,   // every segment above all before it
    kDescending = 2,  // ... below
    kRandom = 3,
};

class AddressSource {
  public:
    virtual ~AddressSource() = default;
    virtual uint64_t take(uint64_t size) = 0;
    virtual void give_back(uint64_t address, uint64_t size) = 0;
};

std::unique_ptr<AddressSource> make_address_source(AddressOrder order, uint64_t seed);

}  // namespace vl::replay
