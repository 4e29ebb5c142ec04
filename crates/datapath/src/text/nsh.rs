//! `push_nsh(flags=0,ttl=63,mdtype=1,np=3,spi=0x1234,si=255,c1=0x0,c2=0x0,c3=0x0,c4=0x0)`: a network service header to be
//! pushed. One of metadata type 2 has `md2=0x...`, its options as bytes, instead of the context words.

use packet::flow::text::Items;
use packet::put;
use packet::wire::nsh::{Metadata, Repr};

use super::Error;
use super::argument::{argument, integer};

/// Formats the action.
pub fn format(out: &mut String, header: &Repr) {
    let Repr { flags, ttl, next, path, metadata } = header;
    put!(out, "push_nsh(flags={flags},ttl={ttl},mdtype={},np={next}", metadata.md_type());
    put!(out, ",spi={:#x},si={}", path >> 8, path & 0xff);
    match metadata {
        Metadata::Fixed([c1, c2, c3, c4]) => put!(out, ",c1={c1:#x},c2={c2:#x},c3={c3:#x},c4={c4:#x}"),
        Metadata::Options(options) if options.is_empty() => {}
        Metadata::Options(options) => {
            out.push_str(",md2=0x");
            options.iter().for_each(|byte| put!(out, "{byte:02x}"));
        }
    }
    out.push(')');
}

/// Parses the arguments.
pub fn parse(text: &str) -> Result<Repr, Error> {
    let mut header = Repr { flags: 0, ttl: 63, next: 0, path: 0xff, metadata: Metadata::Fixed([0; 4]) };
    let (mut md_type, mut words, mut options) = (1, [0; 4], Vec::new());
    for item in Items::new(text) {
        let item = item?;
        let name = format!("push_nsh({})", item.key);
        let number = |max| integer(&name, item.value, max);
        match item.key {
            "flags" => header.flags = number(3)? as u8,
            "ttl" => header.ttl = number(63)? as u8,
            "mdtype" => md_type = number(2)?,
            "np" => header.next = number(0xff)? as u8,
            "spi" => header.path = header.path & 0xff | number(0xff_ffff)? << 8,
            "si" => header.path = header.path & !0xff | number(0xff)?,
            "c1" => words[0] = number(u32::MAX)?,
            "c2" => words[1] = number(u32::MAX)?,
            "c3" => words[2] = number(u32::MAX)?,
            "c4" => words[3] = number(u32::MAX)?,
            "md2" => options = parse_options(&name, item.value)?,
            other => return Err(argument("push_nsh", other, "flags, ttl, mdtype, np, spi, si, c1, c2, c3, c4, md2")),
        }
    }
    header.metadata = match md_type {
        1 => Metadata::Fixed(words),
        2 => Metadata::Options(options),
        _ => return Err(argument("push_nsh(mdtype)", "0", "1 or 2")),
    };
    Ok(header)
}

fn parse_options(name: &str, text: &str) -> Result<Vec<u8>, Error> {
    let error = || argument(name, text, "0x and two digits for each byte of whole words, at most 244 bytes");
    let digits = text.strip_prefix("0x").ok_or_else(error)?;
    if !digits.is_ascii() || digits.len() % 8 != 0 || digits.len() / 2 > Metadata::MAX_OPTIONS {
        return Err(error());
    }
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    // A sign is no digit.
    pairs.map(|pair| byte(pair).filter(|_| pair[0] != b'+').ok_or_else(error)).collect()
}
