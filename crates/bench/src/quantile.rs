//! Quantiles of measured values.

/// The value that `share` of all values are below; NaN if there is none.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share) as usize;
    values.get(at.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// The value in the middle; NaN if there is none.
pub fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_values_are_below() {
        let values = || vec![5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!((median(values()), quantile(values(), 0.2), quantile(values(), 0.9)), (3.0, 2.0, 5.0));
        assert_eq!(quantile(values(), 1.0), 5.0);
        assert!(median(vec![]).is_nan());
    }
}
