"""Reserves and workspaces of cuDNN's recurrent layers, in bytes.

cuDNN documents neither. Both are as layers asked for them on an H200 (cuDNN 9.19, padded and packed, 32
and 16 bits; benchmarks/prediction): 288 of 256 and 512 units with inputs of 256 (sweep.json.xz), 336 of
128, 256 and 384 units with inputs of 96 to 1,024 (recurrent_inputs.json.xz), 3,840 of 32 to 256 units with 8 to
512 samples (few_units_groups.json.xz), the three of ``r11_lstm_lm`` with 400 and 1,150.

A workspace is eight MiB for each layer and direction, a copy of the weights, and numbers for each row
and each sample. There are two plans for these, and the larger is requested: where the input is wider
than the state, it is the second. Padded layers of up to 192 units in float32 and float16, not in bfloat16,
take another algorithm, with two plans of its own (CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H in cudnn/RNN.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.units import MIB

_LSTM, _GRU = 2, 3
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}
"""Numbers that are kept for each unit and step, by mode."""
_RESERVE_CONSTANT = 256
_OF_LAYER, _CONSTANT, _OF_PADDED_SAMPLE = 8 * MIB, 256, 8
"""Bytes of a workspace for each layer and direction, and for each sample where sequences are padded."""
_STEPS_OF_PART = 16
_FEW_UNITS = 192
"""The most of another algorithm; 224 are too many for it."""
_BYTES_OF_DOUBLE = 8
_WHOLE_UNITS, _MOST_UNITS, _WHOLE_SAMPLES, _MOST_SAMPLES = 128, 1024, 8, 128
"""An LSTM in float16 of one layer takes that algorithm with more units, too, where these and its inputs are
multiples of so many, for so many samples at most (use_persist_common_heuristics in cudnn/RNN.cpp; measured
with 256 units).
"""
_LEAST_OF_PERSISTENT = 0.25
"""Of its workspace: cards with fewer processors do not take it, and the others' are smaller."""
_WELL_KNOWN_UNITS, _ERROR = 32, 0.06
"""By how much a workspace may be off from the rule; with few units it may be more than twice it."""


@dataclass(frozen=True, slots=True)
class RecurrentCall:
    """One ``_cudnn_rnn``, or its backward.

    Attributes:
        mode: cudnnRNNMode_t.
        units, inputs: numbers of a state, and of a row of the first layer's input.
        rows: steps of all samples together; padded_rows: with each sample as long as the longest.
        samples: in a batch.
        size_each: bytes of a number.
        is_bfloat16: whether these are bfloat16.
        weight_bytes: of the matrices of all layers.
    """

    mode: int
    units: int
    inputs: int
    layers: int
    directions: int
    dropout: bool
    packed: bool
    rows: int
    padded_rows: int
    samples: int
    size_each: int
    weight_bytes: int
    is_bfloat16: bool = False

    @property
    def reserve_bytes(self) -> int:
        """What the backward reads: of each layer its states, of all layers but the last what the
        next one reads, and of that the bits that dropout took away.
        """
        numbers = _KEPT[self.mode] * self.layers + self.layers - 1
        size = numbers * self.rows * self.units * self.directions * self.size_each
        if self.dropout:
            size += (self.layers - 1) * self.padded_rows * self.units * self.directions**2 // 8
        return size + _RESERVE_CONSTANT

    @property
    def workspace_bytes(self) -> int:
        """What cuDNN works in."""
        numbers = max(plan.numbers(self) for plan in self._plans)
        if self.dropout and self.directions == 1:
            numbers += self.rows * self.units
        constant = self.directions * self.layers * _OF_LAYER + self.weight_bytes + _CONSTANT
        if not self.packed:
            constant += self.samples * _OF_PADDED_SAMPLE
        return constant + numbers * self.size_each

    @property
    def workspace_bounds(self) -> tuple[int, int]:
        """The least and the most bytes of a workspace."""
        size = self.workspace_bytes
        if self.mode not in (_LSTM, _GRU):
            return size // 2, 2 * size
        most_factor = 1 + _ERROR if self.units >= _WELL_KNOWN_UNITS else 2.5
        least_factor = _LEAST_OF_PERSISTENT if self._is_persistent else 1 - _ERROR
        return int(size * least_factor), int(size * most_factor)

    @property
    def _plans(self) -> tuple[_Plan, ...]:
        is_two_way = self.directions == 2
        if self._is_of_few_units:
            return _PLANS_OF_FEW[self.mode][self.layers > 1, is_two_way]
        plans = _PLANS.get((self.mode, self.packed))
        if plans is None:
            return (_OTHER_PLANS[self.packed, is_two_way],)
        return plans[self.layers > 1, is_two_way]

    @property
    def _is_of_few_units(self) -> bool:
        if self.packed or self.is_bfloat16 or self.mode not in _PLANS_OF_FEW:
            return False
        is_float = self.size_each < _BYTES_OF_DOUBLE
        return (is_float and self.units <= _FEW_UNITS) or self._is_persistent

    @property
    def _is_persistent(self) -> bool:
        is_half_lstm = self.mode == _LSTM and self.size_each < 4
        is_plain = self.layers == 1 and self.directions == 1 and self.samples <= _MOST_SAMPLES
        are_whole = self.units % _WHOLE_UNITS == 0 and self.inputs % _WHOLE_UNITS == 0
        is_known = self.units <= _MOST_UNITS and self.samples % _WHOLE_SAMPLES == 0
        return is_half_lstm and is_plain and are_whole and is_known


@dataclass(frozen=True, slots=True)
class _Plan:
    """Numbers that cuDNN works in.

    Attributes:
        units, inputs: of each row, times the units and times the inputs.
        states: of each sample and layer, times the units.
        is_in_parts: whether each sample has a state more for each sixteen steps.
    """

    units: int
    inputs: int
    states: int
    is_in_parts: bool = False

    def numbers(self, call: RecurrentCall) -> int:
        """Of a call."""
        of_row = self.units * call.units + self.inputs * call.inputs
        states = self.states * call.layers
        if self.is_in_parts:
            states += -(-call.rows // (call.samples * _STEPS_OF_PART))
        return call.rows * of_row + call.samples * states * call.units


# By mode and whether sequences are packed; then by whether there are several layers, and both
# directions.
_PLANS: dict[tuple[int, bool], dict[tuple[bool, bool], tuple[_Plan, ...]]] = {
    (_LSTM, False): {
        (False, False): (_Plan(5, 1, 10), _Plan(3, 3, 11)),
        (False, True): (_Plan(14, 1, 24), _Plan(6, 6, 26)),
        (True, False): (_Plan(5, 1, 10), _Plan(2, 3, 17, is_in_parts=True)),
        (True, True): (_Plan(14, 1, 24), _Plan(8, 6, 26)),
    },
    (_LSTM, True): {
        (False, False): (_Plan(4, 0, 6),),
        (False, True): (_Plan(12, 0, 16), _Plan(2, 4, 10)),
        (True, False): (_Plan(4, 0, 6),),
        (True, True): (_Plan(12, 0, 16), _Plan(4, 4, 10)),
    },
    (_GRU, False): {
        (False, False): (_Plan(4, 2, 5), _Plan(3, 3, 5)),
        (False, True): (_Plan(12, 1, 14), _Plan(6, 6, 14)),
        (True, False): (_Plan(4, 1, 5), _Plan(2, 3, 11, is_in_parts=True)),
        (True, True): (_Plan(12, 2, 14), _Plan(8, 6, 14)),
    },
    (_GRU, True): {
        (False, False): (_Plan(3, 0, 3), _Plan(1, 1, 1)),
        (False, True): (_Plan(10, 0, 10), _Plan(2, 4, 6)),
        (True, False): (_Plan(3, 0, 3),),
        (True, True): (_Plan(10, 0, 10), _Plan(4, 4, 6)),
    },
}
_PLANS_OF_FEW: dict[int, dict[tuple[bool, bool], tuple[_Plan, ...]]] = {
    _LSTM: {
        (False, False): (_Plan(21, 1, 8), _Plan(15, 3, 12)),
        (False, True): (_Plan(30, 1, 18), _Plan(18, 6, 26)),
        (True, False): (_Plan(21, 1, 8), _Plan(16, 3, 12)),
        (True, True): (_Plan(30, 1, 18), _Plan(20, 6, 26)),
    },
    _GRU: {
        (False, False): (_Plan(18, 2, 6), _Plan(17, 3, 6)),
        (False, True): (_Plan(24, 2, 14), _Plan(20, 6, 14)),
        (True, False): (_Plan(19, 2, 6), _Plan(18, 3, 6)),
        (True, True): (_Plan(26, 2, 14), _Plan(22, 6, 14)),
    },
}
"""Of the algorithm for few units, by mode; then as above."""
_OTHER_PLANS = {
    (True, False): _Plan(8, 0, 0),
    (True, True): _Plan(14, 0, 0),
    (False, False): _Plan(9, 1, 0),
    (False, True): _Plan(16, 1, 0),
}
"""Of plain recurrent layers, by whether sequences are packed, and both directions."""
