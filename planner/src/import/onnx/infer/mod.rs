//! Infers the shapes of operators' outputs, and the elements of small tensors on which shapes depend.

mod context;
mod fault;
mod fold;
mod layout;
mod math;
mod network;
mod runtime;
mod scalar;
mod value;

use super::super::is_one_of;
use super::proto::Node;
pub use context::{Context, Given, attribute};
pub use fault::Fault;
pub use value::{BOOL, INT64, Limits, RANK, Value, axis, constant, sparse};

/// Operators that only give their first input another shape.
pub const VIEWS: &str = "\
    Reshape Flatten Squeeze Unsqueeze Identity Dropout";

/// Operators that work on one input, element by element.
pub const UNARY: &str = "\
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu \
    HardSigmoid HardSwish LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh \
    Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu";

/// Operators that broadcast two or more inputs against each other, with an output of the inputs' type.
pub const BINARY: &str = "\
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul Or PRelu Pow Sub Sum SwiGLU \
    Xor";

/// Operators whose output has the first input's shape and may overwrite it, since each row depends only on the input's row.
pub const ROWWISE: &str = "\
    BatchNormalization Hardmax LayerNormalization LogSoftmax RMSNormalization Softmax";

/// More operators whose output has the shape and type of their first input.
const SAME: &str = "CumProd CumSum GroupNormalization InstanceNormalization LRN LpNormalization \
    MeanVarianceNormalization ReverseSequence RotaryEmbedding Scatter ScatterElements ScatterND TensorScatter Trilu";

/// Infers the outputs of a node.
type Rule = fn(&Context) -> Result<Vec<Value>, Fault>;

/// Returns the rule of an operator, if this importer knows it.
fn rule(domain: &str, op: &str) -> Option<Rule> {
    if domain == "com.microsoft" {
        return runtime::rule(op);
    }
    if !domain.is_empty() && domain != "ai.onnx" {
        return None;
    }
    Some(match op {
        "BatchNormalization" => network::batch_norm,
        // When fused by ONNX Runtime's optimizer, the simplified form is in the standard domain.
        "LayerNormalization" | "SimplifiedLayerNormalization" => network::layer_norm,
        op if is_one_of(UNARY, op) || is_one_of(ROWWISE, op) => layout::same,
        op if is_one_of(BINARY, op) => math::broadcasts,
        op if op.starts_with("Reduce") => math::reduce,
        "AffineGrid" => network::affine_grid,
        "ArgMax" | "ArgMin" => math::reduce,
        "Attention" => network::attention,
        "AveragePool" | "LpPool" | "MaxPool" => network::pool,
        "Bernoulli" | "BitCast" | "Cast" | "EyeLike" | "RandomNormalLike" | "RandomUniformLike" => {
            layout::cast
        }
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => math::window,
        "CastLike" => layout::cast_like,
        "CausalConvWithState" => network::causal_conv,
        "CenterCropPad" => layout::center_crop_pad,
        "Col2Im" => layout::col2im,
        "Compress" => layout::compress,
        "Concat" => layout::concat,
        "ConcatFromSequence" => layout::concat_from_sequence,
        "Constant" => layout::constant,
        "ConstantOfShape" => layout::constant_of_shape,
        "Conv" | "ConvInteger" | "ConvTranspose" | "DeformConv" | "QLinearConv" => network::conv,
        op if is_one_of(SAME, op) => layout::same,
        "DFT" => math::dft,
        "DepthToSpace" | "SpaceToDepth" => layout::blocks,
        "DequantizeLinear" => math::dequantize,
        "Det" => math::det,
        "Dropout" => layout::dropout,
        "DynamicQuantizeLinear" => math::dynamic_quantize,
        "Einsum" => math::einsum,
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" => math::compare,
        "Expand" => layout::expand,
        "Flatten" => layout::flatten,
        "GRU" | "LSTM" | "RNN" => network::recurrent,
        "Gather" => layout::gather,
        "GatherElements" => layout::gather_elements,
        "GatherND" => layout::gather_nd,
        "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => network::global_pool,
        "GridSample" => network::grid_sample,
        "Identity" => |context| Ok(vec![context.input(0)?.clone()]),
        "IsInf" | "IsNaN" => layout::test,
        "LinearAttention" => network::linear_attention,
        "Gemm" | "MatMul" | "MatMulInteger" | "QLinearMatMul" => math::product_of,
        "MaxRoiPool" | "RoiAlign" => network::regions,
        "MaxUnpool" => network::max_unpool,
        "MelWeightMatrix" => math::mel,
        "Multinomial" => math::multinomial,
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" => math::loss,
        "NonMaxSuppression" => network::boxes,
        "NonZero" => layout::non_zero,
        "OneHot" => layout::one_hot,
        "Pad" => layout::pad,
        "QuantizeLinear" => math::quantize,
        "RandomNormal" | "RandomUniform" => layout::random,
        "Range" => layout::range,
        "Reshape" => layout::reshape,
        "Resize" | "Upsample" => layout::resize,
        "STFT" => math::stft,
        "SequenceAt" => layout::sequence_at,
        "SequenceConstruct" => layout::sequence_construct,
        "SequenceEmpty" => layout::sequence_empty,
        "SequenceErase" => layout::sequence_erase,
        "SequenceInsert" => layout::sequence_insert,
        "SequenceLength" => layout::sequence_length,
        "Shape" => layout::shape,
        "Size" => layout::size,
        "Slice" => layout::slice,
        "Split" => layout::split,
        "SplitToSequence" => layout::split_to_sequence,
        "Squeeze" => layout::squeeze,
        "TfIdfVectorizer" => math::tf_idf,
        "Tile" => layout::tile,
        "TopK" => math::top_k,
        "Transpose" => layout::transpose,
        "Unique" => layout::unique,
        "Unsqueeze" => layout::unsqueeze,
        "Where" => |context| math::across(context, &[0, 1, 2], context.input(1)?.dtype),
        _ => return None,
    })
}

/// Returns whether this importer knows the operator's shapes.
pub fn known(node: &Node) -> bool {
    rule(&node.domain, &node.op_type).is_some()
}

/// Returns the operator's name with its domain.
pub fn full_name(node: &Node) -> String {
    if node.domain.is_empty() { node.op_type.clone() } else { format!("{}.{}", node.domain, node.op_type) }
}

/// Infers the outputs of a node.
pub fn infer(context: &Context) -> Result<Vec<Value>, Fault> {
    let rule = rule(&context.node.domain, &context.node.op_type).ok_or("it is not supported")?;
    let mut outputs = rule(context)?;
    fold::fold(context, &mut outputs);
    Ok(outputs)
}
