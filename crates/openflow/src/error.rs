//! OpenFlow errors: one table of names and of their numbers in each version.

use std::fmt;

use crate::types::Version;

/// Experimenter ids of error numbers.
pub mod vendor {
    /// Nicira.
    pub const NX: u32 = 0x0000_2320;
    /// Open Networking Foundation.
    pub const ONF: u32 = 0x4f4e_4600;
}

/// An error's number in some versions: (type, code) of the specification, or a number of an
/// experimenter, which is a pair in Nicira's errors for OpenFlow 1.0 and 1.1 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorNumber {
    /// Experimenter; zero for the specification's own.
    pub vendor: u32,
    /// First version, counted from zero for OpenFlow 1.0.
    first: u8,
    /// Last version.
    last: u8,
    /// Type.
    pub kind: u16,
    /// Code; zero where an experimenter's number has none.
    pub code: u16,
}

/// An error in whatever numbers it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// One that is in the table.
    Known(OfError),
    /// Another.
    Unknown {
        /// Experimenter; zero for the specification's own.
        vendor: u32,
        /// Type.
        kind: u16,
        /// Code.
        code: u16,
    },
}

/// OFPT_ERROR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMsg {
    /// What was wrong.
    pub error: ErrorCode,
    /// The beginning of the message it is about, at least 64 bytes; for OFPET_HELLO_FAILED a text.
    pub data: Vec<u8>,
}

macro_rules! errors {
    (@vendor OF) => { 0 };
    (@vendor NX) => { vendor::NX };
    (@vendor ONF) => { vendor::ONF };
    (@code) => { 0 };
    (@code $code:literal) => { $code };
    ($($name:ident { $($vendor:ident $first:literal..=$last:literal ($kind:literal $(, $code:literal)?)),* })*) => {
        /// An error that OpenFlow or an extension defines.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs, reason = "spelled as in the specification")]
        #[repr(u8)]
        pub enum OfError { $($name,)* }

        impl OfError {
            /// Every error.
            pub const ALL: &'static [OfError] = &[$(OfError::$name,)*];

            /// The name in the specification.
            pub const fn name(self) -> &'static str {
                match self { $(OfError::$name => stringify!($name),)* }
            }

            /// Its numbers.
            pub const fn numbers(self) -> &'static [ErrorNumber] {
                match self { $(OfError::$name => &[$(ErrorNumber {
                    vendor: errors!(@vendor $vendor), first: $first, last: $last,
                    kind: $kind, code: errors!(@code $($code)?),
                }),*],)* }
            }
        }
    };
}

// name { vendor first..=last version (type, code), ... }, versions counted from OpenFlow 1.0 = 0.
// Where two errors share a number, the first is what it is decoded as.
#[rustfmt::skip]
errors! {
    OFPHFC_INCOMPATIBLE { OF 0..=5 (0, 0) }
    OFPHFC_EPERM { OF 0..=5 (0, 1) }
    OFPBRC_BAD_VERSION { OF 0..=5 (1, 0) }
    OFPBRC_BAD_TYPE { OF 0..=5 (1, 1) }
    OFPBRC_BAD_STAT { OF 0..=5 (1, 2) }
    OFPBRC_BAD_VENDOR { OF 0..=5 (1, 3) }
    OFPBRC_BAD_SUBTYPE { OF 0..=5 (1, 4) }
    OFPBRC_EPERM { OF 0..=5 (1, 5) }
    OFPBRC_BAD_LEN { OF 0..=5 (1, 6) }
    OFPBRC_BUFFER_EMPTY { OF 0..=5 (1, 7) }
    OFPBRC_BUFFER_UNKNOWN { OF 0..=5 (1, 8) }
    OFPBRC_BAD_TABLE_ID { NX 0..=0 (1, 512), OF 1..=5 (1, 9) }
    OFPBRC_IS_SECONDARY { OF 0..=1 (1, 5), OF 2..=5 (1, 10) }
    OFPBRC_BAD_PORT { NX 0..=1 (1, 514), OF 2..=5 (1, 11) }
    OFPBRC_BAD_PACKET { OF 2..=5 (1, 12) }
    OFPBRC_MULTIPART_BUFFER_OVERFLOW { OF 3..=5 (1, 13) }
    OFPBRC_MULTIPART_REQUEST_TIMEOUT { ONF 3..=3 (2640), OF 4..=5 (1, 14) }
    OFPBRC_MULTIPART_REPLY_TIMEOUT { ONF 3..=3 (2641), OF 4..=5 (1, 15) }
    OFPBRC_MULTIPART_BAD_SCHED { OF 5..=5 (1, 16) }
    OFPBRC_PIPELINE_FIELDS_ONLY { OF 5..=5 (1, 17) }
    OFPBRC_UNKNOWN { OF 5..=5 (1, 18) }
    NXBRC_NXM_INVALID { NX 0..=1 (1, 256), NX 2..=5 (2) }
    NXBRC_NXM_BAD_TYPE { NX 0..=1 (1, 257), NX 2..=5 (3) }
    NXBRC_MUST_BE_ZERO { NX 0..=1 (1, 515), NX 2..=5 (4) }
    NXBRC_BAD_REASON { NX 0..=1 (1, 516), NX 2..=5 (5) }
    NXBRC_FM_BAD_EVENT { NX 0..=1 (1, 520), NX 2..=5 (9) }
    NXBRC_UNENCODABLE_ERROR { NX 0..=1 (1, 521), NX 2..=5 (10) }
    OFPBAC_BAD_TYPE { OF 0..=5 (2, 0) }
    OFPBAC_BAD_LEN { OF 0..=5 (2, 1) }
    OFPBAC_BAD_VENDOR { OF 0..=5 (2, 2) }
    OFPBAC_BAD_VENDOR_TYPE { OF 0..=5 (2, 3) }
    OFPBAC_BAD_OUT_PORT { OF 0..=5 (2, 4) }
    OFPBAC_BAD_ARGUMENT { OF 0..=5 (2, 5) }
    OFPBAC_EPERM { OF 0..=5 (2, 6) }
    OFPBAC_TOO_MANY { OF 0..=5 (2, 7) }
    OFPBAC_BAD_QUEUE { OF 0..=5 (2, 8) }
    OFPBAC_BAD_OUT_GROUP { NX 0..=0 (2, 9), OF 1..=5 (2, 9) }
    OFPBAC_MATCH_INCONSISTENT { NX 0..=0 (1, 522), OF 1..=5 (2, 10) }
    OFPBAC_UNSUPPORTED_ORDER { OF 1..=5 (2, 11) }
    OFPBAC_BAD_TAG { OF 1..=5 (2, 12) }
    OFPBAC_BAD_SET_TYPE { NX 0..=1 (1, 523), OF 2..=5 (2, 13) }
    OFPBAC_BAD_SET_LEN { NX 0..=1 (1, 524), OF 2..=5 (2, 14) }
    OFPBAC_BAD_SET_ARGUMENT { NX 0..=1 (1, 525), OF 2..=5 (2, 15) }
    OFPBAC_BAD_SET_MASK { ONF 3..=4 (4250), OF 5..=5 (2, 16) }
    OFPBAC_BAD_METER { OF 5..=5 (2, 17) }
    NXBAC_MUST_BE_ZERO { NX 0..=1 (2, 256), NX 2..=5 (11) }
    NXBAC_BAD_CONJUNCTION { NX 0..=1 (2, 526), NX 2..=5 (15) }
    NXBAC_BAD_HEADER_TYPE { NX 3..=5 (39) }
    NXBAC_UNKNOWN_ED_PROP { NX 3..=5 (40) }
    NXBAC_BAD_ED_PROP { NX 3..=5 (41) }
    NXBAC_CT_DATAPATH_SUPPORT { NX 0..=1 (1, 265), NX 2..=5 (42) }
    OFPBIC_UNKNOWN_INST { OF 1..=5 (3, 0) }
    OFPBIC_UNSUP_INST { NX 0..=0 (2, 257), OF 1..=5 (3, 1) }
    OFPBIC_BAD_TABLE_ID { OF 1..=5 (3, 2) }
    OFPBIC_UNSUP_METADATA { OF 1..=5 (3, 3) }
    OFPBIC_UNSUP_METADATA_MASK { OF 1..=5 (3, 4) }
    OFPBIC_BAD_EXPERIMENTER { OF 1..=5 (3, 5) }
    OFPBIC_BAD_EXP_TYPE { OF 1..=1 (3, 5), OF 2..=5 (3, 6) }
    OFPBIC_BAD_LEN { OF 2..=5 (3, 7) }
    OFPBIC_EPERM { OF 2..=5 (3, 8) }
    OFPBIC_DUP_INST { NX 1..=1 (3, 256), ONF 2..=3 (2600), OF 4..=5 (3, 9) }
    OFPBMC_BAD_TYPE { OF 1..=5 (4, 0) }
    OFPBMC_BAD_LEN { OF 1..=5 (4, 1) }
    OFPBMC_BAD_TAG { OF 1..=5 (4, 2) }
    OFPBMC_BAD_DL_ADDR_MASK { OF 1..=5 (4, 3) }
    OFPBMC_BAD_NW_ADDR_MASK { OF 1..=5 (4, 4) }
    OFPBMC_BAD_WILDCARDS { NX 0..=0 (1, 262), OF 1..=5 (4, 5) }
    OFPBMC_BAD_FIELD { NX 0..=0 (0, 263), OF 1..=5 (4, 6) }
    OFPBMC_BAD_VALUE { NX 0..=0 (1, 258), OF 1..=5 (4, 7) }
    OFPBMC_BAD_MASK { NX 0..=1 (1, 259), OF 2..=5 (4, 8) }
    OFPBMC_BAD_PREREQ { NX 0..=1 (1, 260), OF 2..=5 (4, 9) }
    OFPBMC_DUP_FIELD { NX 0..=1 (1, 261), OF 2..=5 (4, 10) }
    OFPBMC_EPERM { OF 2..=5 (4, 11) }
    NXBMC_CT_DATAPATH_SUPPORT { NX 0..=1 (1, 264), NX 2..=5 (43) }
    OFPFMFC_UNKNOWN { OF 1..=5 (5, 0) }
    OFPFMFC_TABLE_FULL { OF 0..=0 (3, 0), OF 1..=5 (5, 1) }
    OFPFMFC_BAD_TABLE_ID { OF 1..=5 (5, 2) }
    OFPFMFC_OVERLAP { OF 0..=0 (3, 1), OF 1..=5 (5, 3) }
    OFPFMFC_EPERM { OF 0..=0 (3, 2), OF 1..=5 (5, 4) }
    OFPFMFC_BAD_TIMEOUT { OF 1..=5 (5, 5) }
    OFPFMFC_BAD_EMERG_TIMEOUT { OF 0..=0 (3, 3) }
    OFPFMFC_BAD_COMMAND { OF 0..=0 (3, 4), OF 1..=5 (5, 6) }
    OFPFMFC_BAD_FLAGS { NX 0..=0 (3, 258), NX 1..=1 (5, 258), OF 2..=5 (5, 7) }
    OFPFMFC_CANT_SYNC { OF 4..=5 (5, 8) }
    OFPFMFC_BAD_PRIORITY { ONF 3..=3 (2360), OF 4..=5 (5, 9) }
    OFPFMFC_IS_SYNC { OF 4..=5 (5, 10) }
    OFPFMFC_UNSUPPORTED { OF 0..=0 (3, 5) }
    NXFMFC_HARDWARE { NX 0..=1 (5, 256), NX 2..=5 (12) }
    NXFMFC_BAD_TABLE_ID { NX 0..=1 (5, 257), NX 2..=5 (13) }
    NXFMFC_INVALID_TLV_FIELD { NX 0..=1 (1, 536), NX 2..=5 (37) }
    OFPGMFC_GROUP_EXISTS { NX 0..=0 (6, 0), OF 1..=5 (6, 0) }
    OFPGMFC_INVALID_GROUP { NX 0..=0 (6, 1), OF 1..=5 (6, 1) }
    OFPGMFC_WEIGHT_UNSUPPORTED { NX 0..=0 (6, 2), OF 1..=5 (6, 2) }
    OFPGMFC_OUT_OF_GROUPS { NX 0..=0 (6, 3), OF 1..=5 (6, 3) }
    OFPGMFC_OUT_OF_BUCKETS { NX 0..=0 (6, 4), OF 1..=5 (6, 4) }
    OFPGMFC_CHAINING_UNSUPPORTED { NX 0..=0 (6, 5), OF 1..=5 (6, 5) }
    OFPGMFC_WATCH_UNSUPPORTED { NX 0..=0 (6, 6), OF 1..=5 (6, 6) }
    OFPGMFC_LOOP { NX 0..=0 (6, 7), OF 1..=5 (6, 7) }
    OFPGMFC_UNKNOWN_GROUP { NX 0..=0 (6, 8), OF 1..=5 (6, 8) }
    OFPGMFC_CHAINED_GROUP { NX 0..=0 (6, 9), OF 2..=5 (6, 9) }
    OFPGMFC_BAD_TYPE { NX 0..=0 (6, 10), OF 2..=5 (6, 10) }
    OFPGMFC_BAD_COMMAND { NX 0..=0 (6, 11), OF 2..=5 (6, 11) }
    OFPGMFC_BAD_BUCKET { NX 0..=0 (6, 12), OF 2..=5 (6, 12) }
    OFPGMFC_BAD_WATCH { NX 0..=0 (6, 13), OF 2..=5 (6, 13) }
    OFPGMFC_EPERM { NX 0..=0 (6, 14), OF 2..=5 (6, 14) }
    OFPGMFC_UNKNOWN_BUCKET { NX 0..=0 (6, 15), OF 5..=5 (6, 15) }
    OFPGMFC_BUCKET_EXISTS { NX 0..=0 (6, 16), OF 5..=5 (6, 16) }
    OFPPMFC_BAD_PORT { OF 0..=0 (4, 0), OF 1..=5 (7, 0) }
    OFPPMFC_BAD_HW_ADDR { OF 0..=0 (4, 1), OF 1..=5 (7, 1) }
    OFPPMFC_BAD_CONFIG { OF 1..=5 (7, 2) }
    OFPPMFC_BAD_ADVERTISE { OF 1..=5 (7, 3) }
    OFPPMFC_EPERM { OF 2..=5 (7, 4) }
    OFPTMFC_BAD_TABLE { OF 1..=5 (8, 0) }
    OFPTMFC_BAD_CONFIG { OF 1..=5 (8, 1) }
    OFPTMFC_EPERM { OF 2..=5 (8, 2) }
    OFPQOFC_BAD_PORT { OF 0..=0 (5, 0), OF 1..=5 (9, 0) }
    OFPQOFC_BAD_QUEUE { OF 0..=0 (5, 1), OF 1..=5 (9, 1) }
    OFPQOFC_EPERM { OF 0..=0 (5, 2), OF 1..=5 (9, 2) }
    NXQOFC_QUEUE_ERROR { NX 4..=5 (23) }
    OFPSCFC_BAD_FLAGS { OF 1..=5 (10, 0) }
    OFPSCFC_BAD_LEN { OF 1..=5 (10, 1) }
    OFPSCFC_EPERM { OF 2..=5 (10, 2) }
    OFPRRFC_STALE { OF 2..=5 (11, 0) }
    OFPRRFC_UNSUP { OF 2..=5 (11, 1) }
    OFPRRFC_BAD_ROLE { NX 0..=1 (1, 513), OF 2..=5 (11, 2) }
    OFPRRFC_ID_UNSUP { OF 5..=5 (11, 3) }
    OFPRRFC_ID_IN_USE { OF 5..=5 (11, 4) }
    OFPMMFC_UNKNOWN { OF 3..=5 (12, 0) }
    OFPMMFC_METER_EXISTS { OF 3..=5 (12, 1) }
    OFPMMFC_INVALID_METER { OF 3..=5 (12, 2) }
    OFPMMFC_UNKNOWN_METER { OF 3..=5 (12, 3) }
    OFPMMFC_BAD_COMMAND { OF 3..=5 (12, 4) }
    OFPMMFC_BAD_FLAGS { OF 3..=5 (12, 5) }
    OFPMMFC_BAD_RATE { OF 3..=5 (12, 6) }
    OFPMMFC_BAD_BURST { OF 3..=5 (12, 7) }
    OFPMMFC_BAD_BAND { OF 3..=5 (12, 8) }
    OFPMMFC_BAD_BAND_VALUE { OF 3..=5 (12, 9) }
    OFPMMFC_OUT_OF_METERS { OF 3..=5 (12, 10) }
    OFPMMFC_OUT_OF_BANDS { OF 3..=5 (12, 11) }
    OFPTFFC_BAD_TABLE { OF 3..=5 (13, 0) }
    OFPTFFC_BAD_METADATA { OF 3..=5 (13, 1) }
    OFPTFFC_EPERM { OF 3..=5 (13, 5) }
    OFPTFFC_BAD_CAPA { OF 5..=5 (13, 6) }
    OFPTFFC_BAD_MAX_ENT { OF 5..=5 (13, 7) }
    OFPTFFC_BAD_FEATURES { OF 5..=5 (13, 8) }
    OFPTFFC_BAD_COMMAND { OF 5..=5 (13, 9) }
    OFPTFFC_TOO_MANY { OF 5..=5 (13, 10) }
    NXTFFC_DUP_TABLE { NX 3..=5 (44) }
    OFPBPC_BAD_TYPE { NX 0..=1 (13, 2), NX 2..=2 (25), OF 3..=3 (13, 2), OF 4..=5 (14, 0) }
    OFPBPC_BAD_LEN { NX 0..=1 (13, 3), NX 2..=2 (26), OF 3..=3 (13, 3), OF 4..=5 (14, 1) }
    OFPBPC_BAD_VALUE { NX 0..=1 (13, 4), NX 2..=2 (27), OF 3..=3 (13, 4), OF 4..=5 (14, 2) }
    OFPBPC_TOO_MANY { NX 0..=1 (14, 3), NX 2..=2 (28), ONF 3..=3 (4443), OF 4..=5 (14, 3) }
    OFPBPC_DUP_TYPE { NX 0..=1 (14, 4), NX 2..=2 (29), ONF 3..=3 (4444), OF 4..=5 (14, 4) }
    OFPBPC_BAD_EXPERIMENTER { NX 0..=1 (14, 5), NX 2..=2 (30), ONF 3..=3 (4445), OF 4..=5 (14, 5) }
    OFPBPC_BAD_EXP_TYPE { NX 0..=1 (14, 6), NX 2..=2 (31), ONF 3..=3 (4446), OF 4..=5 (14, 6) }
    OFPBPC_BAD_EXP_VALUE { NX 0..=1 (14, 7), NX 2..=2 (32), ONF 3..=3 (4447), OF 4..=5 (14, 7) }
    OFPBPC_EPERM { NX 0..=1 (14, 8), NX 2..=2 (33), ONF 3..=3 (4448), OF 4..=5 (14, 8) }
    OFPACFC_INVALID { ONF 3..=3 (2370), OF 4..=5 (15, 0) }
    OFPACFC_UNSUPPORTED { ONF 3..=3 (2371), OF 4..=5 (15, 1) }
    OFPACFC_EPERM { ONF 3..=3 (2372), OF 4..=5 (15, 2) }
    OFPBFC_UNKNOWN { ONF 3..=3 (2300), OF 4..=5 (17, 0) }
    OFPBFC_EPERM { ONF 3..=3 (2301), OF 4..=5 (17, 1) }
    OFPBFC_BAD_ID { ONF 3..=3 (2302), OF 4..=5 (17, 2) }
    OFPBFC_BUNDLE_EXIST { ONF 3..=3 (2303), OF 4..=5 (17, 3) }
    OFPBFC_BUNDLE_CLOSED { ONF 3..=3 (2304), OF 4..=5 (17, 4) }
    OFPBFC_OUT_OF_BUNDLES { ONF 3..=3 (2305), OF 4..=5 (17, 5) }
    OFPBFC_BAD_TYPE { ONF 3..=3 (2306), OF 4..=5 (17, 6) }
    OFPBFC_BAD_FLAGS { ONF 3..=3 (2307), OF 4..=5 (17, 7) }
    OFPBFC_MSG_BAD_LEN { ONF 3..=3 (2308), OF 4..=5 (17, 8) }
    OFPBFC_MSG_BAD_XID { ONF 3..=3 (2309), OF 4..=5 (17, 9) }
    OFPBFC_MSG_UNSUP { ONF 3..=3 (2310), OF 4..=5 (17, 10) }
    OFPBFC_MSG_CONFLICT { ONF 3..=3 (2311), OF 4..=5 (17, 11) }
    OFPBFC_MSG_TOO_MANY { ONF 3..=3 (2312), OF 4..=5 (17, 12) }
    OFPBFC_MSG_FAILED { ONF 3..=3 (2313), OF 4..=5 (17, 13) }
    OFPBFC_TIMEOUT { ONF 3..=3 (2314), OF 4..=5 (17, 14) }
    OFPBFC_BUNDLE_IN_PROGRESS { ONF 3..=3 (2315), OF 4..=5 (17, 15) }
    OFPBFC_SCHED_NOT_SUPPORTED { OF 5..=5 (17, 16) }
    OFPBFC_SCHED_FUTURE { OF 5..=5 (17, 17) }
    OFPBFC_SCHED_PAST { OF 5..=5 (17, 18) }
    OFPBFC_BAD_VERSION { NX 4..=5 (22) }
    OFPMOFC_UNKNOWN { OF 4..=5 (16, 0) }
    OFPMOFC_MONITOR_EXISTS { NX 0..=1 (1, 517), NX 2..=3 (6), OF 4..=5 (16, 1) }
    OFPMOFC_INVALID_MONITOR { OF 4..=5 (16, 2) }
    OFPMOFC_UNKNOWN_MONITOR { NX 0..=1 (1, 519), NX 2..=3 (8), OF 4..=5 (16, 3) }
    OFPMOFC_BAD_COMMAND { OF 4..=5 (16, 4) }
    OFPMOFC_BAD_FLAGS { NX 0..=1 (1, 518), NX 2..=3 (7), OF 4..=5 (16, 5) }
    OFPMOFC_BAD_TABLE_ID { OF 4..=5 (16, 6) }
    OFPMOFC_BAD_OUT { OF 4..=5 (16, 7) }
    NXTTMFC_BAD_COMMAND { NX 0..=1 (1, 527), NX 2..=5 (16) }
    NXTTMFC_BAD_OPT_LEN { NX 0..=1 (1, 528), NX 2..=5 (17) }
    NXTTMFC_BAD_FIELD_IDX { NX 0..=1 (1, 529), NX 2..=5 (18) }
    NXTTMFC_TABLE_FULL { NX 0..=1 (1, 530), NX 2..=5 (19) }
    NXTTMFC_ALREADY_MAPPED { NX 0..=1 (1, 531), NX 2..=5 (20) }
    NXTTMFC_DUP_ENTRY { NX 0..=1 (1, 532), NX 2..=5 (21) }
    NXTTMFC_INVALID_TLV_DEL { NX 0..=1 (1, 537), NX 2..=5 (38) }
    NXR_NOT_SUPPORTED { NX 0..=1 (1, 533), NX 2..=5 (34) }
    NXR_STALE { NX 0..=1 (1, 534), NX 2..=5 (35) }
    NXST_NOT_CONFIGURED { NX 0..=1 (1, 535), NX 2..=5 (36) }
}

impl OfError {
    /// The error's number in `version`; `None` where that version cannot express it.
    pub fn number(self, version: Version) -> Option<ErrorNumber> {
        let v = version as u8 - 1;
        self.numbers().iter().copied().find(|n| (n.first..=n.last).contains(&v))
    }

    /// The error that has this number in `version`.
    pub fn from_number(version: Version, vendor: u32, kind: u16, code: u16) -> Option<OfError> {
        OfError::ALL
            .iter()
            .copied()
            .find(|e| e.number(version).is_some_and(|n| (n.vendor, n.kind, n.code) == (vendor, kind, code)))
    }
}

impl fmt::Display for OfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for OfError {}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorCode::Known(e) => e.fmt(f),
            ErrorCode::Unknown { vendor: 0, kind, code } => write!(f, "type {kind}, code {code}"),
            ErrorCode::Unknown { vendor, kind, code } => {
                write!(f, "experimenter {vendor:#x} type {kind}, code {code}")
            }
        }
    }
}
