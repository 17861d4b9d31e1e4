//! `allotment`: one set of pool abstractions from a 16 KiB microcontroller to a workstation GPU.
#![no_std]
