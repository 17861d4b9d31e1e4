//! The parts of ONNX's protobuf messages that the importer reads. Field numbers are those of `onnx.proto`.

use prost::Message;

/// Defines messages by their fields, with prost's names of the types and the field numbers.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty = [$($kind:tt)+] $number:tt),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            $($(#[$about])* #[prost($($kind)+, tag = $number)] pub $field: $type,)*
        }
    )*};
}

messages! {
    Model {
        graph: Option<GraphProto> = [message, optional] "7",
        functions: Vec<Function> = [message, repeated] "25",
    }

    GraphProto {
        node: Vec<Node> = [message, repeated] "1",
        initializer: Vec<TensorProto> = [message, repeated] "5",
        input: Vec<ValueInfo> = [message, repeated] "11",
        output: Vec<ValueInfo> = [message, repeated] "12",
        value_info: Vec<ValueInfo> = [message, repeated] "13",
        sparse_initializer: Vec<SparseTensor> = [message, repeated] "15",
    }

    /// An operator that the model defines by other operators.
    Function {
        name: String = [string] "1",
        input: Vec<String> = [string, repeated] "4",
        output: Vec<String> = [string, repeated] "5",
        node: Vec<Node> = [message, repeated] "7",
        domain: String = [string] "10",
        /// The values of attributes that a node does not give.
        attribute_proto: Vec<Attribute> = [message, repeated] "11",
        value_info: Vec<ValueInfo> = [message, repeated] "12",
        overload: String = [string] "13",
    }

    Node {
        input: Vec<String> = [string, repeated] "1",
        output: Vec<String> = [string, repeated] "2",
        name: String = [string] "3",
        op_type: String = [string] "4",
        attribute: Vec<Attribute> = [message, repeated] "5",
        domain: String = [string] "7",
        overload: String = [string] "8",
    }

    Attribute {
        name: String = [string] "1",
        f: f32 = [float] "2",
        i: i64 = [int64] "3",
        s: Vec<u8> = [bytes = "vec"] "4",
        t: Option<TensorProto> = [message, optional] "5",
        g: Option<GraphProto> = [message, optional] "6",
        floats: Vec<f32> = [float, repeated] "7",
        ints: Vec<i64> = [int64, repeated] "8",
        /// Within a function: the attribute of the function from which this attribute takes its value.
        ref_attr_name: String = [string] "21",
        sparse_tensor: Option<SparseTensor> = [message, optional] "22",
    }

    SparseTensor {
        values: Option<TensorProto> = [message, optional] "1",
        dims: Vec<i64> = [int64, repeated] "3",
    }

    TensorProto {
        dims: Vec<i64> = [int64, repeated] "1",
        data_type: i32 = [int32] "2",
        float_data: Vec<f32> = [float, repeated] "4",
        int32_data: Vec<i32> = [int32, repeated] "5",
        int64_data: Vec<i64> = [int64, repeated] "7",
        name: String = [string] "8",
        raw_data: Vec<u8> = [bytes = "vec"] "9",
        double_data: Vec<f64> = [double, repeated] "10",
        uint64_data: Vec<u64> = [uint64, repeated] "11",
        external_data: Vec<Entry> = [message, repeated] "13",
        /// 1 if the elements are in another file.
        data_location: i32 = [int32] "14",
    }

    Entry {
        key: String = [string] "1",
        value: String = [string] "2",
    }

    ValueInfo {
        name: String = [string] "1",
        r#type: Option<Type> = [message, optional] "2",
    }

    Type {
        tensor: Option<TensorType> = [message, optional] "1",
    }

    TensorType {
        elem_type: i32 = [int32] "1",
        shape: Option<Shape> = [message, optional] "2",
    }

    Shape {
        dim: Vec<Dim> = [message, repeated] "1",
    }

    Dim {
        value: Option<i64> = [int64, optional] "1",
        param: Option<String> = [string, optional] "2",
    }
}
