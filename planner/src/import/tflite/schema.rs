//! The parts of TensorFlow Lite's schema that the importer reads. Field numbers are those of `schema.fbs`.

#![allow(unsafe_code)] // Types read in place, as the crate `flatbuffers` requires.

use flatbuffers::{
    Follow, ForwardsUOffset, InvalidFlatbuffer, Table, VOffsetT, Vector, Verifiable, Verifier,
};

/// Returns the offset of field `id` in a table's list of fields.
pub const fn slot(id: VOffsetT) -> VOffsetT {
    4 + 2 * id
}

/// Defines the type of a table: its fields with their types, and their verification.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $id:literal => $type:ty),* $(,)? } numbers { $($number:ident: $nid:literal => $ntype:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name<'a>(Table<'a>);

        impl<'a> Follow<'a> for $name<'a> {
            type Inner = Self;
            unsafe fn follow(buf: &'a [u8], loc: usize) -> Self {
                // SAFETY: the caller gives the place of a table.
                Self(unsafe { Table::new(buf, loc) })
            }
        }

        impl<'a> Verifiable for $name<'a> {
            fn run_verifier(v: &mut Verifier, pos: usize) -> Result<(), InvalidFlatbuffer> {
                v.visit_table(pos)?
                    $(.visit_field::<ForwardsUOffset<$type>>(stringify!($field), slot($id), false)?)*
                    $(.visit_field::<$ntype>(stringify!($number), slot($nid), false)?)*
                    .finish();
                Ok(())
            }
        }

        #[allow(dead_code)]
        impl<'a> $name<'a> {
            $(pub fn $field(self) -> Option<<ForwardsUOffset<$type> as Follow<'a>>::Inner> {
                // SAFETY: `run_verifier` visited this field with this type.
                unsafe { self.0.get::<ForwardsUOffset<$type>>(slot($id), None) }
            })*
            $(pub fn $number(self) -> $ntype {
                // SAFETY: `run_verifier` visited this field with this type.
                unsafe { self.0.get::<$ntype>(slot($nid), None) }.unwrap_or_default()
            })*

            /// Returns the offset of the table in the file.
            pub fn place(self) -> usize {
                self.0.loc()
            }

            /// Returns the offset of field `id` in the file, if the field is present.
            pub fn field(self, id: VOffsetT) -> Option<usize> {
                match self.0.vtable().get(slot(id)) {
                    0 => None,
                    offset => Some(self.0.loc() + offset as usize),
                }
            }

            /// Returns the number of fields that the table's list has room for.
            pub fn fields(self) -> u16 {
                self.0.vtable().num_fields() as u16
            }
        }
    };
}

type List<'a, T> = Vector<'a, ForwardsUOffset<T>>;

table! {
    /// The whole model.
    Model {
        operator_codes: 1 => List<'a, OperatorCode<'a>>,
        subgraphs: 2 => List<'a, SubGraph<'a>>,
        buffers: 4 => List<'a, Buffer<'a>>,
        metadata: 6 => List<'a, Metadata<'a>>,
    } numbers { version: 0 => u32 }
}

table! {
    /// A kind of operator that the model uses.
    OperatorCode { custom_code: 1 => &'a str } numbers { deprecated_builtin_code: 0 => i8, builtin_code: 3 => i32 }
}

table! {
    /// A graph.
    SubGraph {
        tensors: 0 => List<'a, Tensor<'a>>,
        inputs: 1 => Vector<'a, i32>,
        outputs: 2 => Vector<'a, i32>,
        operators: 3 => List<'a, Operator<'a>>,
    } numbers {}
}

table! {
    /// A tensor.
    Tensor {
        shape: 0 => Vector<'a, i32>,
        name: 3 => &'a str,
        quantization: 4 => Quantization<'a>,
    } numbers { kind: 1 => i8, buffer: 2 => u32, is_variable: 5 => bool }
}

table! {
    /// How a tensor's integers represent numbers: one scale and zero point, or one of each per channel.
    Quantization { scale: 2 => Vector<'a, f32>, zero_point: 3 => Vector<'a, i64> } numbers {}
}

table! {
    /// An operator; a number gives the type of its options.
    Operator {
        inputs: 1 => Vector<'a, i32>,
        outputs: 2 => Vector<'a, i32>,
    } numbers { opcode_index: 0 => u32, options_kind: 3 => u8 }
}

table! {
    /// The options of `IF`, `WHILE` and `CALL_ONCE`: the subgraphs that they call.
    Calls {} numbers { first: 0 => i32, second: 1 => i32 }
}

table! {
    /// The options of `VAR_HANDLE`: the name of a variable.
    VarHandle { container: 0 => &'a str, shared_name: 1 => &'a str } numbers {}
}

impl<'a> Operator<'a> {
    /// Returns the subgraphs that it calls.
    pub fn calls(self) -> Result<Option<Calls<'a>>, InvalidFlatbuffer> {
        self.options::<Calls>(&[92, 93, 103])
    }

    /// Returns the variable that it names.
    pub fn var_handle(self) -> Result<Option<VarHandle<'a>>, InvalidFlatbuffer> {
        self.options::<VarHandle>(&[111])
    }

    /// Returns the options, if they are of one of these types of the schema. They are verified here, since only their type determines
    /// their fields.
    fn options<T: Follow<'a> + Verifiable>(
        self,
        kinds: &[u8],
    ) -> Result<Option<T::Inner>, InvalidFlatbuffer> {
        let Some(place) = self.field(4).filter(|_| kinds.contains(&self.options_kind())) else {
            return Ok(None);
        };
        let bytes = self.0.buf();
        ForwardsUOffset::<T>::run_verifier(&mut Verifier::new(&Default::default(), bytes), place)?;
        // SAFETY: the place was verified just now, for this type.
        Ok(Some(unsafe { ForwardsUOffset::<T>::follow(bytes, place) }))
    }
}

table! {
    /// Constant data.
    Buffer { data: 0 => Vector<'a, u8> } numbers { offset: 1 => u64, size: 2 => u64 }
}

table! {
    /// A named buffer.
    Metadata { name: 0 => &'a str } numbers { buffer: 1 => u32 }
}
