//! `learn(table=1,idle_timeout=60,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])`.

use packet::flow::text::{self, Item, Items, PortNames, number};
use packet::put;

use super::split_arrow;
use crate::action::{Action, Learn, LearnDst, LearnSpec, LearnSrc};
use crate::flow_mod::FlowMod;
use crate::matching::Subfield;
use crate::text::{Error, integer, integer16, integer32, subfield};
use crate::types::{Cookie, FlowModFlags, TableId};

pub(super) fn parse(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    let mut learn = Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        priority: FlowMod::DEFAULT_PRIORITY,
        cookie: Cookie(0),
        flags: FlowModFlags::empty(),
        delete_learned: false,
        table: TableId(1),
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        limit: 0,
        result_dst: None,
        specs: Vec::new(),
    };
    for item in Items::new(text) {
        let item = item?;
        let value = item.value;
        match item.key {
            "table" => learn.table = TableId(integer("learn(table)", value, 254)? as u8),
            "priority" => learn.priority = integer16("learn(priority)", value)?,
            "idle_timeout" => learn.idle_timeout = integer16("learn(idle_timeout)", value)?,
            "hard_timeout" => learn.hard_timeout = integer16("learn(hard_timeout)", value)?,
            "fin_idle_timeout" => learn.fin_idle_timeout = integer16("learn(fin_idle_timeout)", value)?,
            "fin_hard_timeout" => learn.fin_hard_timeout = integer16("learn(fin_hard_timeout)", value)?,
            "cookie" => learn.cookie = Cookie(integer("learn(cookie)", value, u64::MAX)?),
            "send_flow_rem" => learn.flags |= FlowModFlags::SEND_FLOW_REM,
            "delete_learned" => learn.delete_learned = true,
            "limit" => learn.limit = integer32("learn(limit)", value)?,
            "result_dst" => learn.result_dst = Some(parse_result(value)?),
            _ => learn.specs.push(parse_spec(&item, ports)?),
        }
    }
    Ok(Action::Learn(Box::new(learn)))
}

fn parse_result(text: &str) -> Result<Subfield, Error> {
    let dst = subfield::parse_writable(text)?;
    if dst.n_bits != 1 {
        return Err(Error::argument("learn", "result_dst must be a single bit"));
    }
    Ok(dst)
}

/// `FIELD`, `FIELD=FIELD`, `FIELD=VALUE`, `load:VALUE->FIELD`, `load:FIELD->FIELD`, `output:FIELD`.
fn parse_spec(item: &Item<'_>, ports: &dyn PortNames) -> Result<LearnSpec, Error> {
    match item.key {
        "load" => {
            let (source, target) = split_arrow("learn(load)", item.value)?;
            let dst = subfield::parse_writable(target)?;
            let src = match number::parse_int(source) {
                Some(value) => LearnSrc::Immediate(fitting(source, value, &dst)?),
                None => LearnSrc::Field(equally_wide(subfield::parse(source)?, &dst)?),
            };
            Ok(LearnSpec { n_bits: dst.n_bits, src, dst: LearnDst::Load(dst) })
        }
        "output" => {
            let src = subfield::parse(item.value)?;
            Ok(LearnSpec { n_bits: src.n_bits, src: LearnSrc::Field(src), dst: LearnDst::Output })
        }
        name => {
            let dst = subfield::parse(name)?;
            let src = match item.value {
                "" => LearnSrc::Field(dst),
                text => parse_source(text, &dst, ports)?,
            };
            Ok(LearnSpec { n_bits: dst.n_bits, src, dst: LearnDst::Match(dst) })
        }
    }
}

/// A field, or else a value: in the form of the field where all of it is matched.
fn parse_source(text: &str, dst: &Subfield, ports: &dyn PortNames) -> Result<LearnSrc, Error> {
    if let Ok(src) = subfield::parse(text) {
        return Ok(LearnSrc::Field(equally_wide(src, dst)?));
    }
    if let Some(all) = dst.in_key().filter(|_| dst.is_whole()) {
        return Ok(LearnSrc::Immediate(all.take(text::parse_value(all.field, text, ports)?)));
    }
    let value = number::parse_int(text);
    let value = value.ok_or_else(|| Error::argument("learn", format!("{text:?} is neither a field nor a number")))?;
    Ok(LearnSrc::Immediate(fitting(text, value, dst)?))
}

fn fitting(text: &str, value: u128, dst: &Subfield) -> Result<u128, Error> {
    if value > dst.max() {
        return Err(Error::argument("learn", format!("{text} does not fit into {} bits", dst.n_bits)));
    }
    Ok(value)
}

fn equally_wide(src: Subfield, dst: &Subfield) -> Result<Subfield, Error> {
    if src.n_bits != dst.n_bits {
        let problem = format!("source is {} bits wide, target is {}", src.n_bits, dst.n_bits);
        return Err(Error::argument("learn", problem));
    }
    Ok(src)
}

pub(super) fn format(out: &mut String, learn: &Learn, ports: &dyn PortNames) {
    put!(out, "learn(table={}", learn.table);
    let timeouts = [
        ("idle_timeout", learn.idle_timeout),
        ("hard_timeout", learn.hard_timeout),
        ("fin_idle_timeout", learn.fin_idle_timeout),
        ("fin_hard_timeout", learn.fin_hard_timeout),
    ];
    for (name, seconds) in timeouts.into_iter().filter(|(_, seconds)| *seconds != 0) {
        put!(out, ",{name}={seconds}");
    }
    if learn.priority != FlowMod::DEFAULT_PRIORITY {
        put!(out, ",priority={}", learn.priority);
    }
    if learn.flags.contains(FlowModFlags::SEND_FLOW_REM) {
        out.push_str(",send_flow_rem");
    }
    if learn.delete_learned {
        out.push_str(",delete_learned");
    }
    if learn.cookie != Cookie(0) {
        put!(out, ",cookie={:#x}", learn.cookie.0);
    }
    if learn.limit != 0 {
        put!(out, ",limit={}", learn.limit);
    }
    if let Some(dst) = &learn.result_dst {
        out.push_str(",result_dst=");
        subfield::format(out, dst);
    }
    for spec in &learn.specs {
        out.push(',');
        format_spec(out, spec, ports);
    }
    out.push(')');
}

fn format_spec(out: &mut String, spec: &LearnSpec, ports: &dyn PortNames) {
    match (&spec.src, &spec.dst) {
        (LearnSrc::Immediate(value), LearnDst::Match(dst)) => match dst.in_key().filter(|_| dst.is_whole()) {
            Some(all) => {
                put!(out, "{}=", all.field.info().name);
                text::format(out, all.field, all.place(*value), all.mask(), ports);
            }
            None => {
                subfield::format(out, dst);
                out.push('=');
                number::hex(out, *value);
            }
        },
        (LearnSrc::Field(src), LearnDst::Match(dst)) => {
            subfield::format(out, dst);
            if (src.field, src.ofs) != (dst.field, dst.ofs) {
                out.push('=');
                subfield::format(out, src);
            }
        }
        (LearnSrc::Immediate(value), LearnDst::Load(dst)) => {
            out.push_str("load:");
            number::hex(out, *value);
            out.push_str("->");
            subfield::format(out, dst);
        }
        (LearnSrc::Field(src), LearnDst::Load(dst)) => {
            out.push_str("load:");
            subfield::format(out, src);
            out.push_str("->");
            subfield::format(out, dst);
        }
        (LearnSrc::Field(src), LearnDst::Output) => {
            out.push_str("output:");
            subfield::format(out, src);
        }
        // An output is learnt from a field only.
        (LearnSrc::Immediate(value), LearnDst::Output) => put!(out, "output:{value}"),
    }
}
