//! Medians, quantiles and means.

/// Computes the quantile `q` (0 to 1) by linear interpolation; NaN if there are no values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let place = q * last as f64;
    let (low, high) = (values[place.floor() as usize], values[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// Computes the median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Computes the geometric mean of positive values.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Computes the arithmetic mean.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(quantile(&[0.0, 1.0], 0.25), 0.25);
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-12);
        assert_eq!(mean(&[1.0, 2.0]), 1.5);
        assert!(median(&[]).is_nan());
    }
}
