//! Finds a function's caller by `.eh_frame` (DWARF 5, section 6.4; the Linux Standard Base, "Exception Frames"), as a rule
//! that fits a word.
//!
//! A walk needs only three registers: the instruction, stack and frame pointers. It ends at rules that no compiler writes for code that
//! calls, such as a frame named by another register.
//!
//! This stands on its own and allocates nothing: it runs inside `malloc`.

/// How to find the caller of the code at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The frame's upper end, where the return address lies below, and where the caller's frame pointer is.
    Frame(Base, i32, Saved),
    /// The code has no caller.
    Outermost,
    /// The code returns from a signal's handler to what was interrupted.
    Signal,
    /// Not known.
    Unknown,
}

/// The base of a frame's upper end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer.
    Stack,
    /// The frame pointer.
    Frame,
    /// The frame's upper end is stored this far from the frame pointer.
    Stored,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// In the register.
    Kept,
    /// This far from the frame's upper end.
    FromEnd(i32),
    /// This far from the frame pointer.
    FromFrame(i32),
}

const NONE: u32 = 1;
/// The ranges, in words, of a frame's end and of a saved register's place in a packed rule.
const END: i32 = 1 << 17;
const PLACE: i32 = 1 << 7;

impl Rule {
    /// Bits of a packed rule.
    pub const BITS: u32 = 31;

    /// Returns the rule as a number that is not 0, if it fits.
    pub fn packed(self) -> Option<u32> {
        let words = |bytes: i32, most: i32| {
            let words = bytes / 8;
            (bytes.rem_euclid(8) == 0 && (-most..most).contains(&words)).then_some((words + most) as u32)
        };
        Some(match self {
            Self::Unknown => NONE,
            Self::Outermost => 2,
            Self::Signal => 3,
            Self::Frame(base, end, saved) => {
                let base = 4 + base as u32;
                let (kind, place) = match saved {
                    Saved::Kept => (0, 0),
                    Saved::FromEnd(at) => (1, words(at, PLACE)?),
                    Saved::FromFrame(at) => (2, words(at, PLACE)?),
                };
                base | words(end, END)? << 3 | kind << 21 | place << 23
            }
        })
    }

    /// Returns the rule of a number from [`Rule::packed`].
    pub fn unpacked(packed: u32) -> Self {
        let bytes = |words: u32, most: i32| (words as i32 - most) * 8;
        let base = match packed & 7 {
            2 => return Self::Outermost,
            3 => return Self::Signal,
            4 => Base::Stack,
            5 => Base::Frame,
            6 => Base::Stored,
            _ => return Self::Unknown,
        };
        let place = bytes(packed >> 23 & 0xFF, PLACE);
        let saved = match packed >> 21 & 3 {
            1 => Saved::FromEnd(place),
            2 => Saved::FromFrame(place),
            _ => Saved::Kept,
        };
        Self::Frame(base, bytes(packed >> 3 & 0x3_FFFF, END), saved)
    }
}

/// A position in memory to read from.
#[derive(Clone, Copy)]
struct Cursor(*const u8);

/// The numbers of registers on x86-64.
const FRAME: u64 = 6;
const STACK: u64 = 7;
const RETURN: u64 = 16;

impl Cursor {
    /// # Safety
    ///
    /// The place must be inside of unwinding tables that the compiler and the linker wrote.
    unsafe fn take<T: Copy>(&mut self) -> T {
        // SAFETY: the caller guarantees that the bytes are there; they need not be aligned.
        unsafe {
            let value = self.0.cast::<T>().read_unaligned();
            self.0 = self.0.add(size_of::<T>());
            value
        }
    }

    /// # Safety
    ///
    /// As for [`Cursor::take`].
    unsafe fn unsigned(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            // SAFETY: the caller guarantees that the bytes are there.
            let byte: u8 = unsafe { self.take() };
            value |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Cursor::take`].
    unsafe fn signed(&mut self) -> i64 {
        let (mut value, mut shift) = (0_i64, 0);
        loop {
            // SAFETY: the caller guarantees that the bytes are there.
            let byte: u8 = unsafe { self.take() };
            value |= i64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte < 0x80 {
                let fills = byte & 0x40 != 0 && shift < 64;
                return if fills { value | -1 << shift } else { value };
            }
        }
    }

    /// Reads a pointer of an encoding; `None` if that is not understood.
    ///
    /// # Safety
    ///
    /// As for [`Cursor::take`].
    unsafe fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let at = self.0.addr() as u64;
        // SAFETY: the caller guarantees that the bytes are there.
        let value = unsafe {
            match encoding & 0x0F {
                0x00 | 0x04 | 0x0C => self.take::<u64>(),
                0x01 => self.unsigned(),
                0x02 => self.take::<u16>().into(),
                0x03 => self.take::<u32>().into(),
                0x09 => self.signed() as u64,
                0x0A => self.take::<i16>() as u64,
                0x0B => self.take::<i32>() as u64,
                _ => return None,
            }
        };
        match encoding & 0x70 {
            0x00 => Some(value),
            0x10 => Some(at.wrapping_add(value)),
            _ => None,
        }
    }
}

/// Returns the rule for the code at `address`, of which `header` is the module's `.eh_frame_hdr`.
///
/// # Safety
///
/// The header must be one that a linker wrote, with its `.eh_frame`, or null.
pub unsafe fn rule(header: *const u8, address: u64) -> Rule {
    // SAFETY: the caller guarantees the tables.
    unsafe { entry(header, address).and_then(|entry| of_entry(entry, address)).unwrap_or(Rule::Unknown) }
}

/// Finds the function's entry.
///
/// # Safety
///
/// As for [`rule`].
unsafe fn entry(header: *const u8, address: u64) -> Option<Cursor> {
    if header.is_null() {
        return None;
    }
    let mut at = Cursor(header);
    // SAFETY: the caller guarantees the tables, whose length the header says.
    unsafe {
        let [version, tables, counts, form] = at.take::<[u8; 4]>();
        // Offsets from the header in 32 bits, in order: all linkers write that.
        if version != 1 || form != 0x3B {
            return None;
        }
        at.pointer(tables)?;
        let count = at.pointer(counts)? as usize;
        let wanted = i32::try_from((address as i64).wrapping_sub(header.addr() as i64)).ok()?;
        let table = at.0.cast::<[i32; 2]>();
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if table.add(middle).read_unaligned()[0] <= wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = table.add(low.checked_sub(1)?).read_unaligned()[1];
        Some(Cursor(header.offset(entry as isize)))
    }
}

/// The state of a function's instructions at one address.
#[derive(Clone, Copy)]
struct State {
    /// `None` if the rule is not understood.
    base: Option<Base>,
    end: i64,
    saved: Option<Saved>,
    /// Where the return address is, if not below the frame's end.
    outermost: bool,
    odd: bool,
}

/// The common entry of functions.
struct Common {
    code: u64,
    data: i64,
    /// The encoding of pointers.
    pointers: u8,
    /// True if a length and more data stand before the instructions.
    augmented: bool,
    signal: bool,
    instructions: Cursor,
    end: *const u8,
}

/// # Safety
///
/// As for [`rule`]; the cursor must be at a common entry.
unsafe fn common(mut at: Cursor) -> Option<Common> {
    // SAFETY: the caller guarantees the entry.
    unsafe {
        let length = at.take::<u32>();
        let end = at.0.add(length as usize);
        let (id, version) = (at.take::<u32>(), at.take::<u8>());
        if length == u32::MAX || id != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let mut letters = at;
        while at.take::<u8>() != 0 {}
        let (code, data) = (at.unsigned(), at.signed());
        let register = if version == 1 { at.take::<u8>().into() } else { at.unsigned() };
        let (mut pointers, mut signal, mut augmented) = (0, false, false);
        let mut behind = at;
        let mut letter = letters.take::<u8>();
        if letter == b'z' {
            augmented = true;
            let length = at.unsigned() as usize;
            behind = Cursor(at.0.add(length));
            letter = letters.take();
        }
        while letter != 0 {
            match letter {
                b'R' => pointers = at.take(),
                b'L' => at.0 = at.0.add(1),
                b'P' => {
                    let encoding = at.take();
                    at.pointer(encoding)?;
                }
                b'S' => signal = true,
                _ => return None,
            }
            letter = letters.take();
        }
        let known = register == RETURN;
        known.then_some(Common { code, data, pointers, augmented, signal, instructions: behind, end })
    }
}

/// # Safety
///
/// As for [`rule`]; the cursor must be at a function's entry.
unsafe fn of_entry(mut at: Cursor, address: u64) -> Option<Rule> {
    // SAFETY: the caller guarantees the entry, which names its common entry and its own length.
    unsafe {
        let length = at.take::<u32>();
        if length == u32::MAX {
            return None;
        }
        let end = at.0.add(length as usize);
        let here = at.0;
        let common = common(Cursor(here.sub(at.take::<u32>() as usize)))?;
        let first = at.pointer(common.pointers)?;
        let size = at.pointer(common.pointers & 0x0F)?;
        if !(first..first.checked_add(size)?).contains(&address) {
            return None;
        }
        if common.signal {
            return Some(Rule::Signal);
        }
        if common.augmented {
            let more = at.unsigned() as usize;
            at.0 = at.0.add(more);
        }
        let nothing = State { base: None, end: 0, saved: Some(Saved::Kept), outermost: false, odd: false };
        let mut run = Run { common: &common, state: nothing, initial: nothing, kept: [nothing; 8], depth: 0 };
        let mut place = first;
        run.instructions(common.instructions, common.end, &mut place, u64::MAX)?;
        run.initial = run.state;
        place = first;
        run.instructions(at, end, &mut place, address)?;
        let State { base, end, saved, outermost, odd } = run.state;
        if outermost {
            return Some(Rule::Outermost);
        }
        Some(Rule::Frame(base?, i32::try_from(end).ok()?, saved?)).filter(|_| !odd)
    }
}

/// Follows instructions.
struct Run<'a> {
    common: &'a Common,
    state: State,
    initial: State,
    kept: [State; 8],
    depth: usize,
}

impl Run<'_> {
    /// Follows instructions until `place` is beyond `address`.
    ///
    /// # Safety
    ///
    /// As for [`rule`].
    unsafe fn instructions(
        &mut self,
        mut at: Cursor,
        end: *const u8,
        place: &mut u64,
        address: u64,
    ) -> Option<()> {
        // SAFETY: the caller guarantees the instructions up to their end.
        unsafe {
            while at.0 < end {
                let code: u8 = at.take();
                let low = u64::from(code & 0x3F);
                let advance = match (code >> 6, code) {
                    (1, _) => low,
                    (0, 0x02) => at.take::<u8>().into(),
                    (0, 0x03) => at.take::<u16>().into(),
                    (0, 0x04) => at.take::<u32>().into(),
                    (0, 0x01) => {
                        *place = at.pointer(self.common.pointers)?;
                        if *place > address {
                            return Some(());
                        }
                        continue;
                    }
                    (2, _) => {
                        let offset = at.unsigned() as i64;
                        self.stored(low, offset);
                        continue;
                    }
                    (3, _) => {
                        self.restored(low);
                        continue;
                    }
                    _ => {
                        self.other(code, &mut at)?;
                        continue;
                    }
                };
                *place += advance * self.common.code;
                if *place > address {
                    return Some(());
                }
            }
        }
        Some(())
    }

    /// Notes that a register is stored at this multiple from the frame's end.
    fn stored(&mut self, register: u64, factor: i64) {
        let offset = factor.wrapping_mul(self.common.data);
        match register {
            FRAME => self.state.saved = i32::try_from(offset).ok().map(Saved::FromEnd),
            RETURN => {
                self.state.outermost = false;
                self.state.odd = offset != -8;
            }
            _ => {}
        }
    }

    fn restored(&mut self, register: u64) {
        match register {
            FRAME => self.state.saved = self.initial.saved,
            RETURN => (self.state.outermost, self.state.odd) = (self.initial.outermost, self.initial.odd),
            _ => {}
        }
    }

    /// Notes that the frame's end is this far from a register.
    fn end(&mut self, register: u64, offset: i64) {
        self.state.base = match register {
            STACK => Some(Base::Stack),
            FRAME => Some(Base::Frame),
            _ => None,
        };
        self.state.end = offset;
    }

    /// Follows the instructions that have a byte of their own.
    ///
    /// # Safety
    ///
    /// As for [`rule`].
    unsafe fn other(&mut self, code: u8, at: &mut Cursor) -> Option<()> {
        // SAFETY: the caller guarantees the instruction's operands.
        unsafe {
            match code {
                // Nothing.
                0x00 => {}
                // A register at an offset, also with a sign or a negative one.
                0x05 => {
                    let (register, offset) = (at.unsigned(), at.unsigned());
                    self.stored(register, offset as i64);
                }
                0x11 => {
                    let (register, offset) = (at.unsigned(), at.signed());
                    self.stored(register, offset);
                }
                0x2F => {
                    let (register, offset) = (at.unsigned(), at.unsigned());
                    self.stored(register, (offset as i64).wrapping_neg());
                }
                0x06 => {
                    let register = at.unsigned();
                    self.restored(register);
                }
                // Not to be had, kept, in another register, a value.
                0x07 => match at.unsigned() {
                    RETURN => self.state.outermost = true,
                    FRAME => self.state.saved = Some(Saved::Kept),
                    _ => {}
                },
                0x08 => match at.unsigned() {
                    RETURN => self.state.odd = true,
                    FRAME => self.state.saved = Some(Saved::Kept),
                    _ => {}
                },
                0x09 | 0x14 | 0x15 => {
                    let register = at.unsigned();
                    at.unsigned();
                    self.lost(register);
                }
                0x0A => {
                    *self.kept.get_mut(self.depth)? = self.state;
                    self.depth += 1;
                }
                0x0B => {
                    self.depth = self.depth.checked_sub(1)?;
                    self.state = self.kept[self.depth];
                }
                // The frame's end.
                0x0C => {
                    let (register, offset) = (at.unsigned(), at.unsigned());
                    self.end(register, offset as i64);
                }
                0x12 => {
                    let (register, offset) = (at.unsigned(), at.signed());
                    self.end(register, offset.wrapping_mul(self.common.data));
                }
                0x0D => {
                    let (register, offset) = (at.unsigned(), self.state.end);
                    self.end(register, offset);
                }
                0x0E => self.state.end = at.unsigned() as i64,
                0x13 => self.state.end = at.signed().wrapping_mul(self.common.data),
                // Expressions: what compilers write where they align the stack.
                0x0F => {
                    let (stored, offset) = self.expression(at);
                    self.state.base = (stored == Some(true)).then_some(Base::Stored);
                    self.state.end = offset;
                }
                0x10 => {
                    let register = at.unsigned();
                    let (stored, offset) = self.expression(at);
                    match register {
                        FRAME => {
                            let place = i32::try_from(offset).ok().filter(|_| stored == Some(false));
                            self.state.saved = place.map(Saved::FromFrame);
                        }
                        RETURN => self.state.odd = true,
                        _ => {}
                    }
                }
                0x16 => {
                    let register = at.unsigned();
                    self.expression(at);
                    self.lost(register);
                }
                // The size of arguments.
                0x2E => {
                    at.unsigned();
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Notes that a register has a value that is not understood.
    fn lost(&mut self, register: u64) {
        match register {
            FRAME => self.state.saved = None,
            RETURN => self.state.odd = true,
            _ => {}
        }
    }

    /// Reads an expression: a place by the frame pointer, and whether the value is what is stored there; `None` if it is another one.
    ///
    /// # Safety
    ///
    /// As for [`rule`].
    unsafe fn expression(&mut self, at: &mut Cursor) -> (Option<bool>, i64) {
        // SAFETY: the caller guarantees the expression and its length.
        unsafe {
            let length = at.unsigned() as usize;
            let end = at.0.add(length);
            let mut inside = *at;
            at.0 = end;
            // `DW_OP_breg6`, then nothing or `DW_OP_deref`.
            if length < 2 || inside.take::<u8>() != 0x76 {
                return (None, 0);
            }
            let offset = inside.signed();
            let stored = match end.offset_from(inside.0) {
                0 => Some(false),
                1 => Some(true).filter(|_| inside.take::<u8>() == 0x06),
                _ => None,
            };
            (stored, offset)
        }
    }
}
