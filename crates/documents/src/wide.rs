//! Unsigned integers of 256 bits: as much arithmetic as decimal numbers need.

use std::cmp::Ordering;

/// Four words of 64 bits, the least significant first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wide([u64; 4]);

impl From<u128> for Wide {
    fn from(number: u128) -> Wide {
        Wide([number as u64, (number >> 64) as u64, 0, 0])
    }
}

impl Ord for Wide {
    fn cmp(&self, other: &Wide) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl PartialOrd for Wide {
    fn partial_cmp(&self, other: &Wide) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Wide {
    /// The product of two 128-bit numbers, which always fits.
    pub(crate) fn product(a: u128, b: u128) -> Wide {
        let (a, b) = (Wide::from(a).0, Wide::from(b).0);
        let mut words = [0u64; 4];
        for (i, x) in a[..2].iter().enumerate() {
            let mut carry = 0u128;
            for (j, y) in b[..2].iter().enumerate() {
                let sum = u128::from(*x) * u128::from(*y) + u128::from(words[i + j]) + carry;
                words[i + j] = sum as u64;
                carry = sum >> 64;
            }
            words[i + 2] = carry as u64;
        }
        Wide(words)
    }

    /// Multiplies in place; the caller knows that the result fits.
    pub(crate) fn multiply_small(&mut self, factor: u64) {
        let mut carry = 0u128;
        for word in &mut self.0 {
            let product = u128::from(*word) * u128::from(factor) + carry;
            *word = product as u64;
            carry = product >> 64;
        }
    }

    /// Divides in place and returns the remainder. The divisor is not zero.
    pub(crate) fn divide_small(&mut self, divisor: u64) -> u64 {
        let mut rest = 0u128;
        for word in self.0.iter_mut().rev() {
            let number = rest << 64 | u128::from(*word);
            *word = (number / u128::from(divisor)) as u64;
            rest = number % u128::from(divisor);
        }
        rest as u64
    }

    /// Adds in place; the caller knows that the result fits.
    pub(crate) fn add_small(&mut self, number: u64) {
        *self = self.plus(Wide([number, 0, 0, 0]));
    }

    /// The sum; the caller knows that it fits.
    pub(crate) fn plus(self, other: Wide) -> Wide {
        let mut carry = 0u128;
        let mut words = [0u64; 4];
        for (word, (a, b)) in words.iter_mut().zip(self.0.iter().zip(other.0)) {
            let sum = u128::from(*a) + u128::from(b) + carry;
            *word = sum as u64;
            carry = sum >> 64;
        }
        Wide(words)
    }

    /// The difference; the caller knows that it is not negative.
    pub(crate) fn minus(self, other: Wide) -> Wide {
        let mut borrow = false;
        let mut words = [0u64; 4];
        for (word, (a, b)) in words.iter_mut().zip(self.0.iter().zip(other.0)) {
            let (part, first) = a.overflowing_sub(b);
            let (part, second) = part.overflowing_sub(u64::from(borrow));
            *word = part;
            borrow = first || second;
        }
        Wide(words)
    }

    /// How many decimal digits it has (zero has one).
    pub(crate) fn digits(self) -> u32 {
        let mut number = self;
        let mut dropped = 0;
        while number.0[2] > 0 || number.0[3] > 0 {
            number.divide_small(10);
            dropped += 1;
        }
        dropped + number.low().checked_ilog10().map_or(1, |log| log + 1)
    }

    /// Whether it is odd.
    pub(crate) fn is_odd(self) -> bool {
        self.0[0] % 2 == 1
    }

    /// The low 128 bits.
    pub(crate) fn low(self) -> u128 {
        u128::from(self.0[1]) << 64 | u128::from(self.0[0])
    }
}

#[cfg(test)]
mod tests {
    use super::Wide;

    #[test]
    fn products_divide_back() {
        let number = 10u128.pow(38) - 7;
        let mut product = Wide::product(number, 10u128.pow(34));
        assert_eq!(product.digits(), 72);
        for _ in 0..34 {
            assert_eq!(product.divide_small(10), 0);
        }
        assert_eq!((product.low(), product.is_odd()), (number, true));
    }

    #[test]
    fn sums_subtract_back() {
        let (a, b) = (Wide::product(u128::MAX, 3), Wide::from(u128::MAX));
        assert_eq!(a.plus(b).minus(b), a);
        assert_eq!(a.plus(b).minus(a), b);
        assert!(a > b);
    }
}
