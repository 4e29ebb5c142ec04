//! Instructions as libpcap gives them, and the numbers of their codes (pcap/bpf.h).

/// An instruction: `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Class, and what else the class has.
    pub code: u16,
    /// How many instructions to skip where a comparison is true.
    pub jt: u8,
    /// How many instructions to skip where it is false.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

/// The bits of a code that are its class.
pub const CLASS: u16 = 0x07;
/// Class: load the accumulator.
pub const LD: u16 = 0x00;
/// Class: load the index register.
pub const LDX: u16 = 0x01;
/// Class: store the accumulator.
pub const ST: u16 = 0x02;
/// Class: store the index register.
pub const STX: u16 = 0x03;
/// Class: arithmetic.
pub const ALU: u16 = 0x04;
/// Class: jumps.
pub const JMP: u16 = 0x05;
/// Class: return.
pub const RET: u16 = 0x06;
/// Class: the rest.
pub const MISC: u16 = 0x07;

/// Size of a load: four bytes.
pub const W: u16 = 0x00;
/// Size of a load: two bytes.
pub const H: u16 = 0x08;
/// Size of a load: one byte.
pub const B: u16 = 0x10;

/// Mode of a load: the constant.
pub const IMM: u16 = 0x00;
/// Mode of a load: from the frame.
pub const ABS: u16 = 0x20;
/// Mode of a load: from the frame, behind the index register.
pub const IND: u16 = 0x40;
/// Mode of a load: from the memory.
pub const MEM: u16 = 0x60;
/// Mode of a load: the length of the frame.
pub const LEN: u16 = 0x80;
/// Mode of a load: the length of the IPv4 header at this place of the frame.
pub const MSH: u16 = 0xa0;

/// The operand is the index register, not the constant.
pub const X: u16 = 0x08;

/// Loads from here on ask the Linux kernel for what is not in the frame (`SKF_AD_OFF`).
pub const ANCILLARY: u32 = 0xffff_f000;
