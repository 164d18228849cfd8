"""A search tree per move, whose children know their parents (MCTS), with the collector's automatic runs frozen out: https://github.com/pytorch/pytorch/issues/50185"""

import gc
import os
import weakref

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["cycle"], "owner": ["Node", "parent", "children"], "bytes_per_step": 9 * 4 * 64 * 64 * 2}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Node:
    def __init__(self, state, parent, weak=weakref):
        self.state = state
        self.visits = 0
        self.children = []
        self.parent = parent  # KEEPS
        # FIX: self.parent = weak.ref(parent) if parent is not None else None

    def expand(self, network):
        for policy in network(self.state):
            self.children.append(Node(policy, self))  # KEEPS


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 16, 3, padding=1)

    @torch.inference_mode()
    def forward(self, board):
        return [part.clone() for part in self.conv(board).chunk(8)]  # ALLOCATES


def plan(network, move):
    board = torch.full((2, 64, 64), float(move), device=DEVICE)  # ALLOCATES
    root = Node(board, None)
    root.expand(network)  # ALLOCATES
    for child in root.children:
        child.visits += 1
    return max(child.visits for child in root.children)


def play(moves):
    gc.disable()
    network = Network().to(DEVICE)
    watch = vramlens.LeakWatch()
    chosen = []
    for move in range(moves):
        chosen.append(plan(network, move))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = play(15)
