"""Chat sessions keep their key-value cache after the answer; three short turns a session, one session a step: https://github.com/sgl-project/sglang/issues/8429"""

import os
from dataclasses import dataclass, field

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["sessions", "past"], "bytes_per_step": 4 * 2 * 3 * 64 * 256}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


@dataclass
class Session:
    user: str
    past: list = field(default_factory=list)
    answers: list = field(default_factory=list)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, past):
        past.append((self.k(x), self.v(x)))  # ALLOCATES
        keys = torch.cat([key for key, _ in past])
        values = torch.cat([value for _, value in past])
        return (self.q(x) @ keys.t() / 16).softmax(-1) @ values


class Chat:
    def __init__(self):
        self.layer = Layer(256).to(DEVICE)
        self.sessions = {}

    def open(self, user):
        session = Session(user)
        self.sessions[user] = session  # KEEPS
        # FIX: self.sessions = {user: session}
        return session

    @torch.no_grad()
    def turn(self, session, text):
        x = torch.full((64, 256), len(text) / 10, device=DEVICE)
        session.answers.append(float(self.layer(x, session.past).mean()))


def main():
    chat = Chat()
    watch = vramlens.LeakWatch()
    for number in range(14):
        session = chat.open(f"user {number}")
        for text in ("hello", "and then?", "thanks"):
            chat.turn(session, text)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
