//! Only tests: see `tests/page`.
