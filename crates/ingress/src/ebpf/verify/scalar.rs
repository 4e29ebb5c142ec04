//! What is known of a number: which of its bits, and between which bounds it lies, without sign.

use super::super::arithmetic::{Arithmetic, Comparison};

/// A set of numbers that holds at least those that a register can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// The bits that are known; those that are not are zero here.
    value: u64,
    /// The bits that are not known.
    unknown: u64,
    /// The smallest number.
    pub min: u64,
    /// The largest number.
    pub max: u64,
}

impl Scalar {
    /// Any number.
    pub const ANY: Scalar = Scalar { value: 0, unknown: u64::MAX, min: 0, max: u64::MAX };

    /// This number.
    pub fn constant(number: u64) -> Scalar {
        Scalar { value: number, unknown: 0, min: number, max: number }
    }

    /// Any number of so many bytes.
    pub fn of_bytes(bytes: usize) -> Scalar {
        Scalar::up_to(if bytes >= 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 })
    }

    /// Any number from 0 to this one.
    pub fn up_to(max: u64) -> Scalar {
        Scalar { max, ..Scalar::ANY }.narrowed()
    }

    /// The number, where there is one only.
    pub fn as_constant(self) -> Option<u64> {
        (self.min == self.max).then_some(self.min)
    }

    /// Whether all of another one's numbers are here, too.
    pub fn holds(self, other: Scalar) -> bool {
        self.min <= other.min
            && other.max <= self.max
            && other.unknown & !self.unknown == 0
            && (other.value ^ self.value) & !self.unknown == 0
    }

    /// The numbers that an operation gives.
    pub fn apply(self, arithmetic: Arithmetic, wide: bool, other: Scalar) -> Scalar {
        if let (Some(a), Some(b)) = (self.as_constant(), other.as_constant()) {
            return Scalar::constant(arithmetic.apply(wide, a, b));
        }
        if wide { self.apply_64(arithmetic, other) } else { self.truncated().apply_32(arithmetic, other.truncated()) }
    }

    fn apply_64(self, arithmetic: Arithmetic, other: Scalar) -> Scalar {
        match arithmetic {
            Arithmetic::Move => other,
            Arithmetic::Add => self.add(other),
            Arithmetic::Subtract => self.subtract(other),
            Arithmetic::And => self.and(other),
            Arithmetic::Or => self.or(other),
            Arithmetic::Xor => {
                let unknown = self.unknown | other.unknown;
                Scalar { value: (self.value ^ other.value) & !unknown, unknown, ..Scalar::ANY }.narrowed()
            }
            Arithmetic::Multiply => match self.max.checked_mul(other.max) {
                Some(max) => Scalar { min: self.min.wrapping_mul(other.min), max, ..Scalar::ANY }.narrowed(),
                None => Scalar::ANY,
            },
            Arithmetic::Divide => Scalar::up_to(self.max),
            Arithmetic::Modulo if other.min > 0 => Scalar::up_to(self.max.min(other.max - 1)),
            Arithmetic::Modulo => Scalar::up_to(self.max),
            Arithmetic::ShiftLeft => other.as_constant().map_or(Scalar::ANY, |by| self.shift_left(by as u32 & 63)),
            Arithmetic::ShiftRight => match other.as_constant() {
                Some(by) => self.shift_right(by as u32 & 63),
                None => Scalar::up_to(self.max),
            },
            // Without its sign bit, a number is shifted as one without sign.
            Arithmetic::ShiftRightSigned if self.max <= i64::MAX as u64 => self.apply_64(Arithmetic::ShiftRight, other),
            Arithmetic::ShiftRightSigned | Arithmetic::Negate => Scalar::ANY,
        }
    }

    /// Of numbers of 32 bits, on 32 bits.
    fn apply_32(self, arithmetic: Arithmetic, other: Scalar) -> Scalar {
        match arithmetic {
            Arithmetic::ShiftLeft | Arithmetic::ShiftRight => match other.as_constant() {
                Some(by) => self.apply_64(arithmetic, Scalar::constant(by & 31)).truncated(),
                None if arithmetic == Arithmetic::ShiftRight => Scalar::up_to(self.max),
                None => Scalar::of_bytes(4),
            },
            Arithmetic::ShiftRightSigned if self.max <= i32::MAX as u64 => self.apply_32(Arithmetic::ShiftRight, other),
            Arithmetic::ShiftRightSigned => Scalar::of_bytes(4),
            _ => self.apply_64(arithmetic, other).truncated(),
        }
    }

    /// The lowest 32 bits.
    pub fn truncated(self) -> Scalar {
        self.lowest(4)
    }

    /// The lowest bytes.
    pub fn lowest(self, bytes: usize) -> Scalar {
        let all = Scalar::of_bytes(bytes).max;
        if self.max <= all {
            return self;
        }
        Scalar { value: self.value & all, unknown: self.unknown & all, min: 0, max: all }.narrowed()
    }

    fn add(self, other: Scalar) -> Scalar {
        // The carries that there are in any case, and those that there may be, tell which bits are known (the "tnum"
        // of Linux).
        let (low, high) = (
            self.value.wrapping_add(other.value),
            self.value.wrapping_add(self.unknown).wrapping_add(other.value.wrapping_add(other.unknown)),
        );
        let unknown = (low ^ high) | self.unknown | other.unknown;
        let bits = Scalar { value: low & !unknown, unknown, ..Scalar::ANY };
        bits.between(self.min.overflowing_add(other.min), self.max.overflowing_add(other.max))
    }

    /// The same between bounds that have left 64 bits both, or both not.
    fn between(self, (min, min_wrapped): (u64, bool), (max, max_wrapped): (u64, bool)) -> Scalar {
        if min_wrapped == max_wrapped { Scalar { min, max, ..self }.narrowed() } else { self.narrowed() }
    }

    fn subtract(self, other: Scalar) -> Scalar {
        let value = self.value.wrapping_sub(other.value);
        let (low, high) = (value.wrapping_sub(other.unknown), value.wrapping_add(self.unknown));
        let unknown = (low ^ high) | self.unknown | other.unknown;
        let bits = Scalar { value: value & !unknown, unknown, ..Scalar::ANY };
        bits.between(self.min.overflowing_sub(other.max), self.max.overflowing_sub(other.min))
    }

    fn and(self, other: Scalar) -> Scalar {
        let value = self.value & other.value;
        let unknown = (self.value | self.unknown) & (other.value | other.unknown) & !value;
        Scalar { value, unknown, min: 0, max: self.max.min(other.max) }.narrowed()
    }

    fn or(self, other: Scalar) -> Scalar {
        let value = self.value | other.value;
        let unknown = (self.unknown | other.unknown) & !value;
        Scalar { value, unknown, min: self.min.max(other.min), max: u64::MAX }.narrowed()
    }

    fn shift_left(self, by: u32) -> Scalar {
        let bits = Scalar { value: self.value << by, unknown: self.unknown << by, ..Scalar::ANY };
        match self.max.leading_zeros() >= by {
            true => Scalar { min: self.min << by, max: self.max << by, ..bits }.narrowed(),
            false => bits.narrowed(),
        }
    }

    fn shift_right(self, by: u32) -> Scalar {
        let bits = Scalar { value: self.value >> by, unknown: self.unknown >> by, ..Scalar::ANY };
        Scalar { min: self.min >> by, max: self.max >> by, ..bits }.narrowed()
    }

    /// The same numbers, where bits and bounds tell of each other.
    fn narrowed(self) -> Scalar {
        let (min, max) = (self.min.max(self.value), self.max.min(self.value | self.unknown));
        if min > max {
            // There is no such number, as behind a comparison that is never true: nobody comes here.
            return Scalar::ANY;
        }
        // The bits in front of the first one in which the bounds differ are those of both.
        let differing = u64::MAX.checked_shr((min ^ max).leading_zeros()).unwrap_or(0);
        let known = !differing;
        let value = self.value | min & known & self.unknown;
        Scalar { value, unknown: self.unknown & differing, min, max }
    }

    /// Whether a comparison is true, where that is known.
    pub fn compare(self, comparison: Comparison, wide: bool, other: Scalar) -> Option<bool> {
        let (a, b) = self.comparable(comparison, wide, other)?;
        if a.as_constant().is_some() && b.as_constant().is_some() {
            return Some(comparison.holds(true, a.min, b.min));
        }
        match comparison {
            Comparison::Equal | Comparison::Different => {
                let differ = a.max < b.min || b.max < a.min || (a.value ^ b.value) & !(a.unknown | b.unknown) != 0;
                differ.then_some(comparison == Comparison::Different)
            }
            Comparison::Greater | Comparison::GreaterSigned => decided(a.min > b.max, a.max <= b.min),
            Comparison::GreaterOrEqual | Comparison::GreaterOrEqualSigned => decided(a.min >= b.max, a.max < b.min),
            Comparison::Less | Comparison::LessSigned => decided(a.max < b.min, a.min >= b.max),
            Comparison::LessOrEqual | Comparison::LessOrEqualSigned => decided(a.max <= b.min, a.min > b.max),
            Comparison::Common => {
                let (may, must) = ((a.value | a.unknown) & (b.value | b.unknown), a.value & b.value);
                decided(must != 0, may == 0)
            }
        }
    }

    /// The numbers of both sides with which a comparison is true. Call it where it may be.
    pub fn refine(self, comparison: Comparison, wide: bool, other: Scalar) -> (Scalar, Scalar) {
        let Some((mut a, mut b)) = self.comparable(comparison, wide, other) else {
            return (self.above_a_sign(comparison, wide, other), other);
        };
        match comparison {
            Comparison::Equal => {
                let both = Scalar {
                    value: a.value | b.value,
                    unknown: a.unknown & b.unknown,
                    min: a.min.max(b.min),
                    max: a.max.min(b.max),
                };
                (a, b) = (both, both);
            }
            Comparison::Different => {
                a = a.without(b);
                b = b.without(a);
            }
            Comparison::Greater | Comparison::GreaterSigned => {
                a.min = a.min.max(b.min.saturating_add(1));
                b.max = b.max.min(a.max.saturating_sub(1));
            }
            Comparison::GreaterOrEqual | Comparison::GreaterOrEqualSigned => {
                a.min = a.min.max(b.min);
                b.max = b.max.min(a.max);
            }
            Comparison::Less | Comparison::LessSigned => {
                a.max = a.max.min(b.max.saturating_sub(1));
                b.min = b.min.max(a.min.saturating_add(1));
            }
            Comparison::LessOrEqual | Comparison::LessOrEqualSigned => {
                a.max = a.max.min(b.max);
                b.min = b.min.max(a.min);
            }
            Comparison::Common => {}
        }
        // A comparison of the lower half says nothing of the upper one.
        (a.narrowed(), if wide || other.max <= u32::MAX.into() { b.narrowed() } else { other })
    }

    /// Whether all of them are multiples of a power of two.
    pub fn is_multiple_of(self, power: u64) -> bool {
        (self.value | self.unknown) & (power - 1) == 0
    }

    /// Both sides as numbers of 64 bits without sign, where that is what the comparison compares.
    fn comparable(self, comparison: Comparison, wide: bool, other: Scalar) -> Option<(Scalar, Scalar)> {
        let is_signed = matches!(
            comparison,
            Comparison::GreaterSigned
                | Comparison::GreaterOrEqualSigned
                | Comparison::LessSigned
                | Comparison::LessOrEqualSigned
        );
        let other = if wide { other } else { other.truncated() };
        let most = match (wide, is_signed) {
            (true, false) => return Some((self, other)),
            (true, true) => i64::MAX as u64,
            (false, false) => u32::MAX.into(),
            (false, true) => i32::MAX as u64,
        };
        (self.max <= most && other.max <= most).then_some((self, other))
    }

    /// What is left of a number that is compared, with its sign, with a constant that is not negative.
    fn above_a_sign(self, comparison: Comparison, wide: bool, other: Scalar) -> Scalar {
        let Some(least) = other.as_constant().filter(|&constant| wide && constant < i64::MAX as u64) else {
            return self;
        };
        let least = match comparison {
            Comparison::GreaterSigned => least + 1,
            Comparison::GreaterOrEqualSigned => least,
            _ => return self,
        };
        if self.max < least || self.min > i64::MAX as u64 {
            return self;
        }
        Scalar { min: self.min.max(least), max: self.max.min(i64::MAX as u64), ..self }.narrowed()
    }

    fn without(mut self, other: Scalar) -> Scalar {
        if let Some(constant) = other.as_constant() {
            if self.min == constant && self.min < self.max {
                self.min += 1;
            }
            if self.max == constant && self.min < self.max {
                self.max -= 1;
            }
        }
        self
    }
}

fn decided(yes: bool, no: bool) -> Option<bool> {
    if yes {
        Some(true)
    } else if no {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ARITHMETIC: &[Arithmetic] = &[
        Arithmetic::Add,
        Arithmetic::Subtract,
        Arithmetic::Multiply,
        Arithmetic::Divide,
        Arithmetic::Modulo,
        Arithmetic::Or,
        Arithmetic::And,
        Arithmetic::Xor,
        Arithmetic::ShiftLeft,
        Arithmetic::ShiftRight,
        Arithmetic::ShiftRightSigned,
        Arithmetic::Move,
        Arithmetic::Negate,
    ];
    const COMPARISONS: &[Comparison] = &[
        Comparison::Equal,
        Comparison::Different,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Common,
        Comparison::GreaterSigned,
        Comparison::GreaterOrEqualSigned,
        Comparison::LessSigned,
        Comparison::LessOrEqualSigned,
    ];

    fn number() -> impl Strategy<Value = u64> {
        let edges = prop_oneof![Just(0), Just(i32::MAX as u64), Just(u64::from(u32::MAX)), Just(i64::MAX as u64)];
        let edges = (edges, 0..3_u64).prop_map(|(edge, more)| edge.wrapping_add(more).wrapping_sub(1));
        prop_oneof![3 => 0..70_u64, 1 => any::<u32>().prop_map(u64::from), 1 => any::<u64>(), 1 => edges]
    }

    /// A number, and something that is known of it.
    fn known() -> impl Strategy<Value = (u64, Scalar)> {
        (number(), number(), number(), number()).prop_map(|(number, a, b, unknown)| {
            let bits = Scalar { value: number & !unknown, unknown, min: number.min(a), max: number.max(b) };
            (number, bits.narrowed())
        })
    }

    fn has(scalar: Scalar, number: u64) -> bool {
        scalar.holds(Scalar::constant(number))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 50 } else { 4000 }))]
        #[test]
        fn what_is_known_stays_true((a, of_a) in known(), (b, of_b) in known(), wide: bool, bytes in 1..=8_usize) {
            prop_assert!(has(of_a, a) && has(of_b, b));
            for &arithmetic in ARITHMETIC {
                let (result, known) = (arithmetic.apply(wide, a, b), of_a.apply(arithmetic, wide, of_b));
                prop_assert!(has(known, result), "{a} {arithmetic:?} {b} = {result}: {known:?}");
            }
            let lowest = a & Scalar::of_bytes(bytes).max;
            prop_assert!(has(of_a.lowest(bytes), lowest));
            for &comparison in COMPARISONS {
                let holds = comparison.holds(wide, a, b);
                let decided = of_a.compare(comparison, wide, of_b);
                prop_assert!(decided.is_none_or(|decided| decided == holds), "{a} {comparison:?} {b}");
                let refined = match (holds, comparison.negated()) {
                    (true, _) => of_a.refine(comparison, wide, of_b),
                    (false, Some(negated)) => of_a.refine(negated, wide, of_b),
                    (false, None) => continue,
                };
                prop_assert!(has(refined.0, a) && has(refined.1, b), "{a} {comparison:?} {b} {holds}: {refined:?}");
            }
        }
    }

    #[test]
    fn bounds_are_as_narrow_as_programs_need() {
        let byte = Scalar::of_bytes(1);
        let header = byte.apply(Arithmetic::And, true, Scalar::constant(0xf));
        let header = header.apply(Arithmetic::ShiftLeft, true, Scalar::constant(2));
        assert_eq!((header.min, header.max), (0, 60));
        let twice = Scalar::ANY.apply(Arithmetic::ShiftLeft, true, Scalar::constant(32));
        let half = twice.apply(Arithmetic::ShiftRight, true, Scalar::constant(32));
        assert_eq!(half.max, u32::MAX.into());
        let (small, _) = Scalar::ANY.refine(Comparison::LessOrEqual, true, Scalar::constant(100));
        assert_eq!(small.max, 100);
        assert_eq!(small.compare(Comparison::Greater, true, Scalar::constant(100)), Some(false));
        let (positive, _) = Scalar::ANY.refine(Comparison::GreaterSigned, true, Scalar::constant(4));
        assert_eq!((positive.min, positive.max), (5, i64::MAX as u64));
    }
}
