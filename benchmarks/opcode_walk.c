/* The floor under any pickle reader: steps over every opcode of a snapshot by its length and does nothing else.

   usage: opcode_walk FILE    prints one line: seconds, opcodes

   The time covers what a reader cannot avoid: open, map, walk to the end, unmap. It knows the opcodes that a snapshot of
   protocol 2 to 5 consists of and stops at any other. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Bytes of an opcode with its fixed argument; 0: not in a snapshot. */
static const uint8_t width[256] = {
    ['('] = 1,  ['.'] = 1,  ['N'] = 1,  ['}'] = 1,  [']'] = 1,  [')'] = 1,  ['a'] = 1,  ['e'] = 1,
    ['s'] = 1,  ['u'] = 1,  ['t'] = 1,  [0x85] = 1, [0x86] = 1, [0x87] = 1, [0x88] = 1, [0x89] = 1,
    [0x94] = 1,                                                 /* MEMOIZE */
    [0x80] = 2, ['K'] = 2,  ['h'] = 2,  ['q'] = 2,              /* PROTO, BININT1, BINGET, BINPUT */
    ['M'] = 3,                                                  /* BININT2 */
    ['J'] = 5,  ['j'] = 5,  ['r'] = 5,                          /* BININT, LONG_BINGET, LONG_BINPUT */
    ['G'] = 9,  [0x95] = 9,                                     /* BINFLOAT, FRAME */
    [0x8a] = 2, [0x8c] = 2, ['X'] = 5,  [0x8b] = 5, [0x8d] = 9, /* LONG1, the UNICODEs, LONG4: plus their payload */
};
/* Bytes of the length that stands before an opcode's payload. */
static const uint8_t prefix[256] = {[0x8a] = 1, [0x8c] = 1, ['X'] = 4, [0x8b] = 4, [0x8d] = 8};

static uint64_t walk(const uint8_t *data, uint64_t size) {
    uint64_t at = 0, opcodes = 0;
    while (at < size) {
        uint8_t opcode = data[at];
        uint64_t step = width[opcode], payload = 0;
        if (step == 0 || step > size - at) return 0;
        if (prefix[opcode] == 1)
            payload = data[at + 1];
        else if (prefix[opcode])
            memcpy(&payload, data + at + 1, prefix[opcode]); /* little-endian machines only */
        at += step;
        if (payload > size - at) return 0;
        at += payload;
        opcodes++;
        if (opcode == '.') return opcodes;
    }
    return 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    double start = now();
    int file = argc == 2 ? open(argv[1], O_RDONLY) : -1;
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) return 2;
    uint64_t size = (uint64_t)info.st_size;
    uint8_t *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    if (data == MAP_FAILED) return 2;
    uint64_t opcodes = walk(data, size);
    munmap(data, size);
    close(file);
    if (opcodes == 0) return 3;
    printf("%.6f %llu\n", now() - start, (unsigned long long)opcodes);
    return 0;
}
