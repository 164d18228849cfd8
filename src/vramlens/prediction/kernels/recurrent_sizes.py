"""Reserves and workspaces of cuDNN's recurrent layers, in bytes.

cuDNN documents neither. Both are as layers asked for them on an H200 (cuDNN 9.19, padded and packed, 32
and 16 bits; benchmarks/prediction): 288 of 256 and 512 units with inputs of 256 (sweep.json.xz), 336 of
128, 256 and 384 units with inputs of 96 to 1,024 (recurrent_inputs.json.xz), 3,840 of 32 to 256 units with 8 to
512 samples (few_units_groups.json.xz), 419 of one to four layers with and without dropout, of 16 to 1,000
steps, in training and in inference (layers_of_programs.json.xz), the three of ``r11_lstm_lm`` with 400 and
1,150.

A workspace is eight MiB for each layer and direction, a copy of the weights, and numbers for each row
and each sample. Training has two plans for these, of the forward and of the backward pass, and the larger
is requested in both; inference has the first alone. The first holds the gates of 256 steps at most, and
what dropout leaves. Padded layers of up to 192 units in float32 and float16, not in bfloat16,
take another algorithm, with two plans of its own (CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H in cudnn/RNN.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.units import MIB

_RNN_RELU, _RNN_TANH, _LSTM, _GRU = 0, 1, 2, 3
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}
"""Numbers that are kept for each unit and step, by mode."""
_RESERVE_CONSTANT = 256
_OF_LAYER, _CONSTANT, _OF_PADDED_SAMPLE = 8 * MIB, 256, 8
"""Bytes of a workspace for each layer and direction, and for each sample where sequences are padded."""
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_STEPS_AT_ONCE = 256
"""Steps whose gates the first plan of padded layers holds."""
_STATES = {0: 3, 1: 3, 2: 10, 3: 5}, {0: 5, 1: 5, 2: 11, 3: 5}
"""Of each sample, by mode: in the first plan for each layer, in the second of one layer."""
_STATES_OF_SEVERAL, _MORE_OF_LSTM = 8, 6
_LONG, _MANY_SAMPLES = 128, 128
"""Steps from which on the second plan of several layers holds more states, and samples from which on one of
fewer steps holds fewer.
"""
_FEW_UNITS = {0: 384, 1: 384, 2: 192, 3: 192}
"""The most of another algorithm, by mode; 224 are too many for it, and 512 of plain layers."""
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
        is_training: whether a backward pass may follow.
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
    is_training: bool = True

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
        first, *others = (plan.numbers(self) for plan in self._plans)
        if self.dropout and self.directions == 1:
            first += self.rows * self.units
        numbers = max([first, *others])
        constant = self.directions * self.layers * _OF_LAYER + self.weight_bytes + _CONSTANT
        if not self.packed:
            constant += self.samples * _OF_PADDED_SAMPLE
        return constant + numbers * self.size_each

    @property
    def workspace_bounds(self) -> tuple[int, int]:
        """The least and the most bytes of a workspace."""
        size = self.workspace_bytes
        if self.mode not in (_LSTM, _GRU) and not self._has_usual_plans:
            return size // 2, 2 * size
        most_factor = 1 + _ERROR if self.units >= _WELL_KNOWN_UNITS else 2.5
        least_factor = _LEAST_OF_PERSISTENT if self._is_persistent else 1 - _ERROR
        return int(size * least_factor) - self._bytes_of_later_gates, int(size * most_factor)

    @property
    def _bytes_of_later_gates(self) -> int:
        """Of the gates of later steps, where it is not known that they are left out."""
        if self.packed or self._has_usual_plans:
            return 0
        later = max(0, self.rows - self.samples * _STEPS_AT_ONCE)
        return later * _GATES[self.mode] * self.units * self.directions * self.size_each

    @property
    def _plans(self) -> tuple[_Plan, ...]:
        if self._has_usual_plans:
            plans = self._usual_plans
        elif self._is_of_few_units:
            plans = _PLANS_OF_FEW[self.mode][self.layers > 1, self._is_two_way]
        elif (self.mode, self.packed) in _PLANS:
            plans = _PLANS[self.mode, self.packed][self.layers > 1, self._is_two_way]
        else:
            plans = (_OTHER_PLANS[self._is_two_way],)
        if self.is_training:
            return plans
        key = self.mode, self._is_of_few_units, self._is_two_way
        return (plans[0] if self.packed else _PLANS_OF_INFERENCE.get(key, plans[0]),)

    @property
    def _usual_plans(self) -> tuple[_Plan, ...]:
        gates = _GATES[self.mode] * min(1.0, _STEPS_AT_ONCE * self.samples / self.rows)
        of_layer, of_one_layer = (states[self.mode] for states in _STATES)
        is_wide = self.inputs > self.units
        if self.layers == 1:
            units, states = 3, of_one_layer
        else:
            units, states = 2, self.layers * self._states_of_several + _STATES_OF_SEVERAL
        return (
            _Plan(1 + gates, 1, of_layer),
            _Plan(units + (not is_wide), 2 + is_wide, states, is_of_all_layers=True),
        )

    @property
    def _states_of_several(self) -> int:
        """Of each layer and sample in the second plan of several."""
        of_few_steps = 7 if self.samples >= _MANY_SAMPLES else 9
        states = 13 if self.rows >= _LONG * self.samples else of_few_steps
        return states + (_MORE_OF_LSTM if self.mode == _LSTM else 0)

    @property
    def _has_usual_plans(self) -> bool:
        return not (self.packed or self._is_two_way or self._is_of_few_units)

    @property
    def _is_two_way(self) -> bool:
        return self.directions == 2

    @property
    def _is_of_few_units(self) -> bool:
        if self.packed or self.is_bfloat16 or self.mode not in _PLANS_OF_FEW:
            return False
        is_float = self.size_each < _BYTES_OF_DOUBLE
        return (is_float and self.units <= _FEW_UNITS[self.mode]) or self._is_persistent

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
        is_of_all_layers: whether these are of all layers together.
    """

    units: float
    inputs: int
    states: int
    is_of_all_layers: bool = False

    def numbers(self, call: RecurrentCall) -> int:
        """Of a call."""
        of_row = self.units * call.units + self.inputs * call.inputs
        layers = 1 if self.is_of_all_layers else call.layers
        return round(call.rows * of_row) + call.samples * self.states * layers * call.units


_OF_GRU: dict[tuple[bool, bool], tuple[_Plan, ...]] = {
    (False, True): (_Plan(12, 1, 14), _Plan(6, 6, 14)),
    (True, True): (_Plan(12, 2, 14), _Plan(8, 6, 14)),
}
# By mode and whether sequences are packed; then by whether there are several layers, and both
# directions.
_PLANS: dict[tuple[int, bool], dict[tuple[bool, bool], tuple[_Plan, ...]]] = {
    (_LSTM, False): {
        (False, True): (_Plan(14, 1, 24), _Plan(6, 6, 26)),
        (True, True): (_Plan(14, 1, 24), _Plan(8, 6, 26)),
    },
    (_LSTM, True): {
        (False, False): (_Plan(4, 0, 6),),
        (False, True): (_Plan(12, 0, 16), _Plan(2, 4, 10)),
        (True, False): (_Plan(4, 0, 6),),
        (True, True): (_Plan(12, 0, 16), _Plan(4, 4, 10)),
    },
    (_GRU, False): _OF_GRU,
    (_RNN_RELU, False): _OF_GRU,
    (_RNN_TANH, False): _OF_GRU,
    (_GRU, True): {
        (False, False): (_Plan(3, 0, 3), _Plan(1, 1, 1)),
        (False, True): (_Plan(10, 0, 10), _Plan(2, 4, 6)),
        (True, False): (_Plan(3, 0, 3),),
        (True, True): (_Plan(10, 0, 10), _Plan(4, 4, 6)),
    },
}
_OF_FEW_PLAIN: dict[tuple[bool, bool], tuple[_Plan, ...]] = {
    (False, False): (_Plan(13, 2, 6), _Plan(12, 3, 6)),
    (False, True): (_Plan(19, 2, 14), _Plan(15, 6, 14)),
    (True, False): (_Plan(14, 2, 6), _Plan(13, 3, 6)),
    (True, True): (_Plan(21, 2, 14), _Plan(17, 6, 14)),
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
    _RNN_RELU: _OF_FEW_PLAIN,
    _RNN_TANH: _OF_FEW_PLAIN,
}
"""Of the algorithm for few units, by mode; then as above."""
_PLANS_OF_INFERENCE = {
    (_GRU, False, True): _Plan(12, 1, 14),
    (_GRU, True, False): _Plan(16, 1, 4),
    (_GRU, True, True): _Plan(24, 1, 10),
    **dict.fromkeys([(_RNN_RELU, False, True), (_RNN_TANH, False, True)], _Plan(8, 1, 10)),
    **dict.fromkeys([(_RNN_RELU, True, False), (_RNN_TANH, True, False)], _Plan(6, 1, 4)),
    **dict.fromkeys([(_RNN_RELU, True, True), (_RNN_TANH, True, True)], _Plan(12, 1, 10)),
}
"""Where they are not the first of training, of padded layers by mode, whether units are few, and both
directions.
"""
_OTHER_PLANS = {False: _Plan(8, 0, 0), True: _Plan(14, 0, 0)}
"""Of plain packed layers, by both directions."""
