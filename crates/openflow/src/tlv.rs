//! Which tunnel options the fields tun_metadata0 to tun_metadata63 stand for (NXT_TLV_TABLE_*).

/// What a change to the table does (`enum nx_tlv_table_mod_command`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum TlvCommand {
    /// Add entries.
    Add = 0,
    /// Delete entries.
    Delete = 1,
    /// Delete all entries.
    Clear = 2,
}

/// An option and its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TlvMap {
    /// Option class (Geneve).
    pub class: u16,
    /// Option type.
    pub kind: u8,
    /// Length of the option's value, bytes: a multiple of 4 up to 124, zero included.
    pub len: u8,
    /// N of tun_metadataN.
    pub index: u16,
}

/// NXT_TLV_TABLE_MOD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlvTableMod {
    /// What to do.
    pub command: TlvCommand,
    /// Entries.
    pub maps: Vec<TlvMap>,
}

/// NXT_TLV_TABLE_REPLY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlvTable {
    /// Bytes for all options together.
    pub max_option_space: u32,
    /// Number of fields.
    pub max_fields: u16,
    /// Entries, by index.
    pub maps: Vec<TlvMap>,
}
