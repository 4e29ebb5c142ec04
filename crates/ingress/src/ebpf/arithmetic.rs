//! What the arithmetic operations and comparisons of eBPF give (RFC 9669, sections 4.1 and 4.3), for who interprets and
//! for who verifies.

/// Operations on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    /// By zero, it gives zero.
    Divide,
    /// By zero, it gives the number itself.
    Modulo,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    Move,
    Negate,
}

/// Comparisons of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Equal,
    Different,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    /// They have a bit in common.
    Common,
    GreaterSigned,
    GreaterOrEqualSigned,
    LessSigned,
    LessOrEqualSigned,
}

impl Arithmetic {
    /// What it gives, on 64 bits or 32.
    #[inline]
    pub fn apply(self, wide: bool, a: u64, b: u64) -> u64 {
        if wide { self.apply_64(a, b) } else { self.apply_32(a as u32, b as u32).into() }
    }

    #[inline]
    fn apply_64(self, a: u64, b: u64) -> u64 {
        match self {
            Arithmetic::Add => a.wrapping_add(b),
            Arithmetic::Subtract => a.wrapping_sub(b),
            Arithmetic::Multiply => a.wrapping_mul(b),
            Arithmetic::Divide => a.checked_div(b).unwrap_or(0),
            Arithmetic::Modulo => a.checked_rem(b).unwrap_or(a),
            Arithmetic::Or => a | b,
            Arithmetic::And => a & b,
            Arithmetic::Xor => a ^ b,
            // Shifts look at the lowest six bits, or five.
            Arithmetic::ShiftLeft => a.wrapping_shl(b as u32),
            Arithmetic::ShiftRight => a.wrapping_shr(b as u32),
            Arithmetic::ShiftRightSigned => (a as i64).wrapping_shr(b as u32) as u64,
            Arithmetic::Move => b,
            Arithmetic::Negate => a.wrapping_neg(),
        }
    }

    #[inline]
    fn apply_32(self, a: u32, b: u32) -> u32 {
        match self {
            Arithmetic::Divide => a.checked_div(b).unwrap_or(0),
            Arithmetic::Modulo => a.checked_rem(b).unwrap_or(a),
            Arithmetic::ShiftLeft => a.wrapping_shl(b),
            Arithmetic::ShiftRight => a.wrapping_shr(b),
            Arithmetic::ShiftRightSigned => (a as i32).wrapping_shr(b) as u32,
            // The lower half of these depends on the lower halves only.
            _ => self.apply_64(a.into(), b.into()) as u32,
        }
    }
}

impl Comparison {
    /// Whether it is true, on 64 bits or 32.
    #[inline]
    pub fn holds(self, wide: bool, a: u64, b: u64) -> bool {
        let (a, b, sa, sb) = match wide {
            true => (a, b, a as i64, b as i64),
            false => (a & 0xffff_ffff, b & 0xffff_ffff, i64::from(a as i32), i64::from(b as i32)),
        };
        match self {
            Comparison::Equal => a == b,
            Comparison::Different => a != b,
            Comparison::Greater => a > b,
            Comparison::GreaterOrEqual => a >= b,
            Comparison::Less => a < b,
            Comparison::LessOrEqual => a <= b,
            Comparison::Common => a & b != 0,
            Comparison::GreaterSigned => sa > sb,
            Comparison::GreaterOrEqualSigned => sa >= sb,
            Comparison::LessSigned => sa < sb,
            Comparison::LessOrEqualSigned => sa <= sb,
        }
    }

    /// What is true where this is not; `None` for [`Comparison::Common`].
    pub fn negated(self) -> Option<Comparison> {
        Some(match self {
            Comparison::Equal => Comparison::Different,
            Comparison::Different => Comparison::Equal,
            Comparison::Greater => Comparison::LessOrEqual,
            Comparison::GreaterOrEqual => Comparison::Less,
            Comparison::Less => Comparison::GreaterOrEqual,
            Comparison::LessOrEqual => Comparison::Greater,
            Comparison::Common => return None,
            Comparison::GreaterSigned => Comparison::LessOrEqualSigned,
            Comparison::GreaterOrEqualSigned => Comparison::LessSigned,
            Comparison::LessSigned => Comparison::GreaterOrEqualSigned,
            Comparison::LessOrEqualSigned => Comparison::GreaterSigned,
        })
    }

    /// The same with its sides exchanged.
    pub fn mirrored(self) -> Comparison {
        match self {
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::GreaterSigned => Comparison::LessSigned,
            Comparison::GreaterOrEqualSigned => Comparison::LessOrEqualSigned,
            Comparison::LessSigned => Comparison::GreaterSigned,
            Comparison::LessOrEqualSigned => Comparison::GreaterOrEqualSigned,
            same => same,
        }
    }
}
