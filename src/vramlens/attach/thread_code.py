"""The machine code of a thread that runs one text of Python, for x86-64.

int run(char *text) {
    pthread_detach(pthread_self());
    int state = PyGILState_Ensure();
    PyRun_SimpleString(text);
    PyGILState_Release(state);
    return 0;
}
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_ENTER = bytes.fromhex("55 53 4883ec08 4889fb")  # push rbp; push rbx; sub rsp, 8; mov rbx, rdi
_RESULT_TO_ARGUMENT = bytes.fromhex("4889c7")  # mov rdi, rax
_KEEP_STATE = bytes.fromhex("89c5")  # mov ebp, eax
_TEXT_TO_ARGUMENT = bytes.fromhex("4889df")  # mov rdi, rbx
_STATE_TO_ARGUMENT = bytes.fromhex("89ef")  # mov edi, ebp
_LEAVE = bytes.fromhex("4883c408 5b 5d 31c0 c3")  # add rsp, 8; pop rbx; pop rbp; xor eax, eax; ret

NEEDED_OF_LIBC = ("pthread_create", "pthread_self", "pthread_detach")
NEEDED_OF_PYTHON = ("PyGILState_Ensure", "PyRun_SimpleString", "PyGILState_Release")


def thread_code(addresses: Mapping[str, int]) -> bytes:
    """The code; it may lie anywhere.

    Args:
        addresses: of the functions above.
    """

    def call(name: str) -> bytes:  # mov rax, address; call rax
        return b"\x48\xb8" + struct.pack("<Q", addresses[name]) + b"\xff\xd0"

    return b"".join(
        (
            _ENTER,
            call("pthread_self"),
            _RESULT_TO_ARGUMENT,
            call("pthread_detach"),
            call("PyGILState_Ensure"),
            _KEEP_STATE,
            _TEXT_TO_ARGUMENT,
            call("PyRun_SimpleString"),
            _STATE_TO_ARGUMENT,
            call("PyGILState_Release"),
            _LEAVE,
        )
    )
