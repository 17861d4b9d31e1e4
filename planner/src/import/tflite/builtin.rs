//! Names of TensorFlow Lite's builtin operators, as numbered in `schema.fbs`, and what is known of them.

/// The first operators, by number.
pub const NAMES: &[&str] = &[
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE",
    "DEQUANTIZE", "EMBEDDING_LOOKUP", "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION",
    "L2_POOL_2D", "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "LSH_PROJECTION", "LSTM", "MAX_POOL_2D",
    "MUL", "RELU", "RELU_N1_TO_1", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX",
    "SPACE_TO_DEPTH", "SVDF", "TANH", "CONCAT_EMBEDDINGS", "SKIP_GRAM", "CALL", "CUSTOM",
    "EMBEDDING_LOOKUP_SPARSE", "PAD", "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER", "BATCH_TO_SPACE_ND",
    "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB", "DIV", "SQUEEZE", "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP", "TOPK_V2", "SPLIT", "LOG_SOFTMAX", "DELEGATE",
    "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM", "ARG_MAX", "MINIMUM", "LESS", "NEG", "PADV2",
    "GREATER", "GREATER_EQUAL", "LESS_EQUAL", "SELECT", "SLICE", "SIN", "TRANSPOSE_CONV", "SPARSE_TO_DENSE",
    "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG", "SUM", "SQRT", "RSQRT", "SHAPE", "POW", "ARG_MIN",
    "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT", "LOGICAL_AND",
    "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL",
    "FLOOR_MOD", "RANGE", "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD",
    "ABS", "SPLIT_V", "UNIQUE", "CEIL", "REVERSE_V2", "ADD_N", "GATHER_ND", "COS", "WHERE", "RANK", "ELU",
    "REVERSE_SEQUENCE", "MATRIX_DIAG", "QUANTIZE", "MATRIX_SET_DIAG", "ROUND", "HARD_SWISH",
];

/// The name of an operator.
pub fn name(code: i32) -> String {
    let known = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    match (known, code) {
        (Some(name), _) => (*name).into(),
        (None, 150) => "GELU".into(),
        (None, code) => format!("BUILTIN_{code}"),
    }
}

/// The same memory seen otherwise.
pub const VIEWS: &[&str] = &["RESHAPE", "SQUEEZE", "EXPAND_DIMS"];

/// Element by element, or row by row: the output may overwrite an input.
pub const IN_PLACE: &[&str] = &[
    "ADD", "FLOOR", "LOGISTIC", "MUL", "RELU", "RELU_N1_TO_1", "RELU6", "SOFTMAX", "TANH", "SUB", "DIV",
    "EXP", "LOG_SOFTMAX", "PRELU", "MAXIMUM", "MINIMUM", "NEG", "SIN", "LOG", "SQRT", "RSQRT", "POW",
    "LOGICAL_OR", "LOGICAL_AND", "LOGICAL_NOT", "FLOOR_DIV", "SQUARE", "LEAKY_RELU", "SQUARED_DIFFERENCE",
    "ABS", "CEIL", "COS", "ELU", "ROUND", "HARD_SWISH", "GELU",
];
