"""The native part. Columns are bytes of 64-bit numbers in the machine's order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

NONE: int
__version__: str

_Gap = tuple[int, int, int, Optional[tuple[int, int]]]

class Problem:
    def __new__(
        cls,
        sizes: bytes,
        lower: bytes,
        upper: bytes,
        *,
        names: Optional[Sequence[str]] = None,
        align: Optional[bytes] = None,
        fixed: Optional[bytes] = None,
        hint: Optional[bytes] = None,
        alias: Optional[bytes] = None,
        tier: Optional[bytes] = None,
        gaps: Sequence[_Gap] = ...,
    ) -> Problem: ...
    @staticmethod
    def from_csv(text: bytes) -> Problem: ...
    def __len__(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def sizes(self) -> bytes: ...
    @property
    def lower(self) -> bytes: ...
    @property
    def upper(self) -> bytes: ...
    @property
    def align(self) -> bytes: ...
    def solve(
        self,
        *,
        capacities: Mapping[int, int],
        time_limit: float,
        threads: int,
        seed: int,
        work: Optional[int] = None,
        progress: Optional[Callable[[float, int, int], object]] = None,
        cancel: Optional[Callable[[], object]] = None,
    ) -> Solution: ...
    def written(self, solution: Solution) -> str: ...
    def proved(self, solution: Solution) -> str: ...
    def violation(self, offsets: bytes, capacity: Optional[int] = None) -> Optional[str]: ...

class Solution:
    @property
    def offsets(self) -> bytes: ...
    @property
    def peak(self) -> int: ...
    @property
    def lower_bound(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def seconds(self) -> float: ...

class Model:
    @staticmethod
    def from_json(bytes: bytes) -> Model: ...
    @staticmethod
    def from_onnx(
        bytes: bytes, dims: Mapping[str, int], shapes: Optional[bytes] = None, folder: Optional[str] = None
    ) -> Model: ...
    @staticmethod
    def from_tflite(bytes: bytes) -> Model: ...
    def to_json(self) -> str: ...
    @property
    def has_bodies(self) -> bool: ...
    @property
    def constants(self) -> list[bool]: ...
    @property
    def tensors(self) -> list[str]: ...
    def reordered(self, seconds: float) -> Model: ...
    def lowered(
        self,
        *,
        align: int,
        weights: bool,
        inputs: bool,
        in_place: bool = False,
        reorder: bool = False,
        rematerialise: Optional[int] = None,
        stream: Optional[int] = None,
        spill: Optional[int] = None,
        joint: Optional[int] = None,
        seed: int = 0,
        time_limit: float = 60.0,
        work: Optional[int] = None,
    ) -> tuple[Problem, list[Optional[int]], list[str]]: ...
    def with_offline_plan(self, offsets: Sequence[int]) -> bytes: ...

def replay(written: str, runs: int) -> tuple[int, int, int]: ...
