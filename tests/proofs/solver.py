"""Claims, and what the solver says of them."""

import sys

import z3


class Proofs:
    """Counts what was proved, by topic."""

    def __init__(self) -> None:
        self.proved: dict[str, int] = {}
        self.failed = 0

    def claim(self, topic: str, assumptions: list, *goals) -> None:
        """Proves each goal from the assumptions, which must be possible themselves: from what is impossible, all follows."""
        solver = z3.Solver()
        solver.add(*assumptions)
        if solver.check() != z3.sat:
            self.fail(topic, "what is assumed is never so")
            return
        solver.add(z3.Not(z3.And(*goals)))
        result = solver.check()
        if result == z3.unsat:
            self.proved[topic] = self.proved.get(topic, 0) + len(goals)
        else:
            self.fail(topic, str(solver.model()) if result == z3.sat else "the solver does not know")

    def refuted(self, topic: str, assumptions: list, goal) -> None:
        """Makes sure that a claim that is known to be wrong is not proved."""
        solver = z3.Solver()
        solver.add(*assumptions, z3.Not(goal))
        if solver.check() == z3.sat:
            self.proved[topic] = self.proved.get(topic, 0) + 1
        else:
            self.fail(topic, "a wrong claim was proved")

    def fail(self, topic: str, why: str) -> None:
        """Notes a claim that does not hold."""
        self.failed += 1
        print(f"FAILED: {topic}: {why}")

    def conclude(self) -> None:
        """Prints the counts, and ends the program."""
        for topic, count in self.proved.items():
            print(f"proved: {topic}: {count} claims")
        print(f"{sum(self.proved.values())} claims proved, {self.failed} failed")
        sys.exit(1 if self.failed else 0)
