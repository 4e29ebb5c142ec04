//! Arguments of the actions that take more than one value.

use packet::flow::text::{Error as Wrong, Item, Items, PortNames, port};
use packet::put;

use super::{Error, integer, integer16, integer32, subfield};
use crate::action::{
    Action, Bundle, BundleAlgorithm, Controller, Encap, EncapProp, HashFields, Multipath, MultipathAlgorithm, Sample,
    SampleDirection,
};
use crate::tun_metadata::TunField;
use crate::types::{OfPort, PacketInReason, TableId};

/// Formats each element, with commas between.
pub(super) fn join<T>(out: &mut String, list: &[T], mut format: impl FnMut(&mut String, &T)) {
    for (i, element) in list.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        format(out, element);
    }
}

/// The words of an argument list, separated by commas or white space.
fn words(text: &str) -> Vec<&str> {
    text.split([',', ' ']).filter(|word| !word.is_empty()).collect()
}

/// Looks a name up in a table of names.
fn named<T: Copy>(action: &str, what: &str, table: &[(T, &str)], name: &str) -> Result<T, Error> {
    let found = table.iter().find(|(_, n)| n.eq_ignore_ascii_case(name)).map(|(value, _)| *value);
    found.ok_or_else(|| {
        let valid: Vec<_> = table.iter().map(|(_, name)| *name).collect();
        Error::argument(action, format!("unknown {what} {name:?}, valid are {}", valid.join(", ")))
    })
}

fn name_of<T: PartialEq>(table: &[(T, &'static str)], value: &T) -> &'static str {
    table.iter().find(|(v, _)| v == value).map_or("<unknown>", |(_, name)| name)
}

fn invalid(action: &str, item: &Item<'_>, valid: &str) -> Error {
    Error::argument(action, format!("unknown argument {:?}, valid are {valid}", item.key))
}

/// Hexadecimal bytes, with or without dots between them.
pub(super) fn parse_hex(action: &str, text: &str) -> Result<Vec<u8>, Error> {
    let digits: String = text.chars().filter(|c| !matches!(c, '.' | ' ')).collect();
    let wrong = || Error::argument(action, format!("{text:?} is not pairs of hexadecimal digits, as 01.02.ff"));
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong())).collect()
}

pub(super) fn format_hex(out: &mut String, bytes: &[u8]) {
    for (i, byte) in bytes.iter().enumerate() {
        put!(out, "{}{byte:02x}", if i > 0 { "." } else { "" });
    }
}

/// `PORT`, `FIELD[]`, or `port=PORT,max_len=N`.
pub(super) fn parse_output(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    if !text.contains("port=") {
        let unknown = match port::parse("output", text, ports) {
            Ok(port) => return Ok(Action::output(OfPort(port))),
            Err(unknown) => unknown,
        };
        // A name that is no port may be a field; a wrong field is told as such if it looks like one.
        return match subfield::parse(text) {
            Ok(src) => Ok(Action::OutputReg { src, max_len: 0xffff }),
            Err(error) if text.contains('[') => Err(error),
            Err(_) => Err(unknown.into()),
        };
    }
    let (mut port, mut max_len) = (None, None);
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "port" => port = Some(port::parse("output", item.value, ports)?),
            "max_len" => max_len = Some(integer32("output", item.value)?),
            _ => return Err(invalid("output", &item, "port, max_len")),
        }
    }
    let (Some(port), Some(max_len)) = (port.map(OfPort), max_len) else {
        return Err(Error::argument("output", "needs both port and max_len"));
    };
    if max_len < 14 {
        return Err(Error::argument("output", format!("max_len {max_len} is less than the minimum value 14")));
    }
    if port.is_reserved() && port != OfPort::LOCAL && port != OfPort::IN_PORT {
        return Err(Error::argument("output", format!("cannot cut packets to {port}")));
    }
    Ok(Action::OutputTrunc { port, max_len })
}

pub(super) fn format_output(out: &mut String, port: OfPort, max_len: u16, ports: &dyn PortNames) {
    if !port.is_reserved() {
        out.push_str("output:");
    }
    port::format(out, port.0, ports);
    if port == OfPort::CONTROLLER {
        put!(out, ":{max_len}");
    }
}

pub(super) fn parse_controller(text: &str) -> Result<Action, Error> {
    let mut controller = Controller::default();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Action::Output { port: OfPort::CONTROLLER, max_len: integer16("controller", text)? });
    }
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "reason" => controller.reason = named("controller", "reason", PacketInReason::NAMES, item.value)?,
            "max_len" => controller.max_len = integer16("controller(max_len)", item.value)?,
            "id" => controller.id = integer16("controller(id)", item.value)?,
            "userdata" => controller.userdata = parse_hex("controller(userdata)", item.value)?,
            "pause" => controller.pause = true,
            "meter_id" => controller.meter = Some(integer32("controller(meter_id)", item.value)?),
            _ => return Err(invalid("controller", &item, "reason, max_len, id, userdata, pause, meter_id")),
        }
    }
    if (Controller { max_len: 0xffff, ..controller.clone() }) == Controller::default() {
        return Ok(Action::Output { port: OfPort::CONTROLLER, max_len: controller.max_len });
    }
    Ok(Action::Controller(Box::new(controller)))
}

pub(super) fn format_controller(out: &mut String, controller: &Controller) {
    out.push_str("controller(");
    let start = out.len();
    if controller.reason != PacketInReason::Action {
        put!(out, "reason={},", name_of(PacketInReason::NAMES, &controller.reason));
    }
    if controller.max_len != 0xffff {
        put!(out, "max_len={},", controller.max_len);
    }
    if controller.id != 0 {
        put!(out, "id={},", controller.id);
    }
    if !controller.userdata.is_empty() {
        out.push_str("userdata=");
        format_hex(out, &controller.userdata);
        out.push(',');
    }
    if controller.pause {
        out.push_str("pause,");
    }
    if let Some(meter) = controller.meter {
        put!(out, "meter_id={meter},");
    }
    if out.len() > start {
        out.truncate(out.len() - 1);
    }
    out.push(')');
}

/// `PORT:QUEUE`, `PORTqQUEUE` or `PORT,QUEUE`.
pub(super) fn parse_enqueue(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    let (port, queue) = text
        .split_once([':', ','])
        .or_else(|| text.split_once('q'))
        .ok_or_else(|| Error::argument("enqueue", "write it as enqueue:PORT:QUEUE or enqueue(PORT,QUEUE)"))?;
    let port = OfPort(port::parse("enqueue", port.trim(), ports)?);
    Ok(Action::Enqueue { port, queue: integer32("enqueue", queue.trim())? })
}

const BUNDLE_ALGORITHMS: &[(BundleAlgorithm, &str)] =
    &[(BundleAlgorithm::ActiveBackup, "active_backup"), (BundleAlgorithm::Hrw, "hrw")];

/// `FIELDS,BASIS,ALGORITHM,ofport,[FIELD,]members:PORT,PORT,...`.
pub(super) fn parse_bundle(text: &str, load: bool, ports: &dyn PortNames) -> Result<Action, Error> {
    let action = if load { "bundle_load" } else { "bundle" };
    let missing = || Error::argument(action, "not enough arguments; it ends in members:PORT,...");
    let (head, members) = text.split_once("members:").or_else(|| text.split_once("slaves:")).ok_or_else(missing)?;
    let head = words(head);
    let (fields, basis, algorithm, kind, dst) = match head[..] {
        [fields, basis, algorithm, kind] if !load => (fields, basis, algorithm, kind, None),
        [fields, basis, algorithm, kind, dst] if load => (fields, basis, algorithm, kind, Some(dst)),
        _ => return Err(missing()),
    };
    if !kind.eq_ignore_ascii_case("ofport") {
        return Err(Error::argument(action, format!("unknown type of members {kind:?}, valid is ofport")));
    }
    let members = members.split([',', ' ', '[', ']']).filter(|word| !word.is_empty());
    let members = members.map(|word| Ok(OfPort(port::parse(action, word, ports)?))).collect::<Result<_, Error>>()?;
    Ok(Action::Bundle(Box::new(Bundle {
        fields: named(action, "fields", HashFields::NAMES, fields)?,
        basis: integer16(action, basis)?,
        algorithm: named(action, "algorithm", BUNDLE_ALGORITHMS, algorithm)?,
        members,
        dst: dst.map(subfield::parse_writable).transpose()?,
    })))
}

pub(super) fn format_bundle(out: &mut String, bundle: &Bundle, ports: &dyn PortNames) {
    out.push_str(if bundle.dst.is_some() { "bundle_load(" } else { "bundle(" });
    let (fields, algorithm) =
        (name_of(HashFields::NAMES, &bundle.fields), name_of(BUNDLE_ALGORITHMS, &bundle.algorithm));
    put!(out, "{fields},{},{algorithm},ofport,", bundle.basis);
    if let Some(dst) = &bundle.dst {
        subfield::format(out, dst);
        out.push(',');
    }
    out.push_str("members:");
    join(out, &bundle.members, |out, port| port::format(out, port.0, ports));
    out.push(')');
}

const MULTIPATH_ALGORITHMS: &[(MultipathAlgorithm, &str)] = &[
    (MultipathAlgorithm::ModuloN, "modulo_n"),
    (MultipathAlgorithm::HashThreshold, "hash_threshold"),
    (MultipathAlgorithm::Hrw, "hrw"),
    (MultipathAlgorithm::IterHash, "iter_hash"),
];

/// `FIELDS,BASIS,ALGORITHM,N_LINKS,ARG,FIELD[BITS]`.
pub(super) fn parse_multipath(text: &str) -> Result<Action, Error> {
    let [fields, basis, algorithm, links, arg, dst] = words(text)[..] else {
        let problem = "needs six arguments: FIELDS,BASIS,ALGORITHM,N_LINKS,ARG,FIELD[BITS]";
        return Err(Error::argument("multipath", problem));
    };
    let dst = subfield::parse_writable(dst)?;
    let links = integer("multipath(n_links)", links, 0x1_0000)?;
    if links == 0 {
        return Err(Error::argument("multipath", "n_links 0 is not in valid range 1 to 65536"));
    }
    if dst.n_bits < 16 && links > 1 << dst.n_bits {
        let problem = format!("the target's {} bits have fewer values than {links} links", dst.n_bits);
        return Err(Error::argument("multipath", problem));
    }
    Ok(Action::Multipath(Box::new(Multipath {
        fields: named("multipath", "fields", HashFields::NAMES, fields)?,
        basis: integer16("multipath(basis)", basis)?,
        algorithm: named("multipath", "algorithm", MULTIPATH_ALGORITHMS, algorithm)?,
        max_link: (links - 1) as u16,
        arg: integer32("multipath(arg)", arg)?,
        dst,
    })))
}

pub(super) fn format_multipath(out: &mut String, multipath: &Multipath) {
    let fields = name_of(HashFields::NAMES, &multipath.fields);
    let algorithm = name_of(MULTIPATH_ALGORITHMS, &multipath.algorithm);
    let links = u32::from(multipath.max_link) + 1;
    put!(out, "multipath({fields},{},{algorithm},{links},{},", multipath.basis, multipath.arg);
    subfield::format(out, &multipath.dst);
    out.push(')');
}

pub(super) fn parse_dec_ttl(text: &str) -> Result<Action, Error> {
    if text.is_empty() {
        return Ok(Action::DecTtl);
    }
    let ids = words(text).into_iter().map(|id| integer16("dec_ttl", id)).collect::<Result<Vec<_>, _>>()?;
    if ids.is_empty() {
        return Err(Error::argument("dec_ttl", "expected at least one controller id"));
    }
    Ok(Action::DecTtlCntIds(ids))
}

/// Headers that `encap` can push.
const HEADERS: &[(u32, &str)] = &[(0, "ethernet"), (0x1_894f, "nsh"), (0x1_8847, "mpls"), (0x1_8848, "mpls_mc")];

pub(super) fn parse_encap(text: &str) -> Result<Action, Error> {
    let mut items = Items::new(text);
    let header = items.next().transpose()?;
    let header = header.ok_or_else(|| Error::argument("encap", "needs a header, as encap(ethernet)"))?;
    let packet_type = named("encap", "header", HEADERS, header.key)?;
    let props = Items::new(header.value).map(|item| parse_prop(&item?)).collect::<Result<Vec<_>, Error>>()?;
    if let Some(item) = items.next() {
        return Err(invalid("encap", &item?, "one header"));
    }
    Ok(Action::Encap(Box::new(Encap { packet_type, header_size: 0, props })))
}

fn parse_prop(item: &Item<'_>) -> Result<EncapProp, Error> {
    match item.key {
        "md_type" => Ok(EncapProp::NshMdType(integer("encap(md_type)", item.value, 0xff)? as u8)),
        "ether_type" => Ok(EncapProp::MplsEtherType(integer16("encap(ether_type)", item.value)?)),
        "tlv" => {
            let [class, kind, data] = words(item.value)[..] else {
                return Err(Error::argument("encap", "write a TLV as tlv(CLASS,TYPE,0xDATA)"));
            };
            let digits = data.strip_prefix("0x").unwrap_or(data);
            let padded = if digits.len().is_multiple_of(2) { digits.to_string() } else { format!("0{digits}") };
            Ok(EncapProp::NshTlv {
                class: integer16("encap(tlv)", class)?,
                kind: integer("encap(tlv)", kind, 0xff)? as u8,
                data: parse_hex("encap(tlv)", &padded)?,
            })
        }
        _ => Err(invalid("encap", item, "md_type, tlv, ether_type")),
    }
}

pub(super) fn format_encap(out: &mut String, encap: &Encap) {
    put!(out, "encap({}", name_of(HEADERS, &encap.packet_type));
    if !encap.props.is_empty() {
        out.push('(');
        join(out, &encap.props, |out, prop| match prop {
            EncapProp::NshMdType(kind) => put!(out, "md_type={kind}"),
            EncapProp::MplsEtherType(kind) => put!(out, "ether_type={kind:#x}"),
            EncapProp::NshTlv { class, kind, data } => {
                put!(out, "tlv(0x{class:04x},{kind},0x");
                data.iter().for_each(|byte| put!(out, "{byte:02x}"));
                out.push(')');
            }
        });
        out.push(')');
    }
    out.push(')');
}

/// Nothing, or `packet_type(ns=N,type=N)`.
pub(super) fn parse_decap(text: &str) -> Result<Action, Error> {
    let Some(item) = Items::new(text).next().transpose()? else {
        return Ok(Action::Decap(None));
    };
    if item.key != "packet_type" {
        return Err(invalid("decap", &item, "packet_type"));
    }
    let (mut namespace, mut kind) = (None, None);
    for item in Items::new(item.value) {
        let item = item?;
        match item.key {
            "ns" => namespace = Some(integer("decap(ns)", item.value, 1)? as u32),
            "type" => kind = Some(integer16("decap(type)", item.value)?),
            _ => return Err(invalid("decap", &item, "ns, type")),
        }
    }
    match (namespace, kind) {
        (Some(namespace), Some(kind)) => Ok(Action::Decap(Some(namespace << 16 | u32::from(kind)))),
        _ => Err(Error::argument("decap", "needs both ns and type")),
    }
}

pub(super) fn parse_fin_timeout(text: &str) -> Result<Action, Error> {
    let (mut idle, mut hard) = (0, 0);
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "idle_timeout" => idle = integer16("fin_timeout(idle_timeout)", item.value)?,
            "hard_timeout" => hard = integer16("fin_timeout(hard_timeout)", item.value)?,
            _ => return Err(invalid("fin_timeout", &item, "idle_timeout, hard_timeout")),
        }
    }
    Ok(Action::FinTimeout { idle, hard })
}

pub(super) fn format_fin_timeout(out: &mut String, idle: u16, hard: u16) {
    out.push_str("fin_timeout(");
    match (idle, hard) {
        (0, 0) => {}
        (idle, 0) => put!(out, "idle_timeout={idle}"),
        (0, hard) => put!(out, "hard_timeout={hard}"),
        (idle, hard) => put!(out, "idle_timeout={idle},hard_timeout={hard}"),
    }
    out.push(')');
}

/// `[PORT],[TABLE][,ct]`.
pub(super) fn parse_resubmit(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    let mut parts = text.splitn(3, ',').map(str::trim);
    let in_port = match parts.next() {
        None | Some("") => OfPort::IN_PORT,
        Some(text) => OfPort(port::parse("resubmit", text, ports)?),
    };
    let table = match parts.next() {
        None | Some("") => TableId::ALL,
        Some(text) => TableId(integer("resubmit", text, 255)? as u8),
    };
    let with_ct = match parts.next() {
        None | Some("") => false,
        Some("ct") => true,
        Some(other) => return Err(Error::argument("resubmit", format!("unknown argument {other:?}, valid is ct"))),
    };
    if in_port == OfPort::IN_PORT && table == TableId::ALL {
        return Err(Error::argument("resubmit", "at least one of port and table must be given"));
    }
    Ok(Action::Resubmit { in_port, table, with_ct })
}

pub(super) fn format_resubmit(out: &mut String, in_port: OfPort, table: TableId, with_ct: bool, ports: &dyn PortNames) {
    if in_port != OfPort::IN_PORT && table == TableId::ALL && !with_ct {
        out.push_str("resubmit:");
        return port::format(out, in_port.0, ports);
    }
    out.push_str("resubmit(");
    if in_port != OfPort::IN_PORT {
        port::format(out, in_port.0, ports);
    }
    out.push(',');
    if table != TableId::ALL {
        put!(out, "{table}");
    }
    out.push_str(if with_ct { ",ct)" } else { ")" });
}

/// `ID,CLAUSE/N`, clauses counting from one.
pub(super) fn parse_conjunction(text: &str) -> Result<Action, Error> {
    let split = text.split_once(',').and_then(|(id, rest)| Some((id, rest.split_once('/')?)));
    let (id, (clause, count)) =
        split.ok_or_else(|| Error::argument("conjunction", "write it as conjunction(ID,CLAUSE/N)"))?;
    let id = integer32("conjunction(id)", id.trim())?;
    let clause = integer("conjunction(clause)", clause.trim(), 64)? as u8;
    let n_clauses = integer("conjunction(n)", count.trim(), 64)? as u8;
    if n_clauses < 2 || clause < 1 || clause > n_clauses {
        let problem = format!("clause {clause} of {n_clauses} is not one of 2 to 64 clauses, counting from one");
        return Err(Error::argument("conjunction", problem));
    }
    Ok(Action::Conjunction { id, clause: clause - 1, n_clauses })
}

pub(super) fn parse_sample(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    let mut sample = Sample {
        probability: 0,
        collector_set: 0,
        obs_domain: 0,
        obs_point: 0,
        sampling_port: OfPort::ANY,
        direction: SampleDirection::Default,
    };
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "probability" => sample.probability = integer16("sample(probability)", item.value)?,
            "collector_set_id" => sample.collector_set = integer32("sample(collector_set_id)", item.value)?,
            "obs_domain_id" => sample.obs_domain = integer32("sample(obs_domain_id)", item.value)?,
            "obs_point_id" => sample.obs_point = integer32("sample(obs_point_id)", item.value)?,
            "sampling_port" => sample.sampling_port = OfPort(port::parse("sample", item.value, ports)?),
            "ingress" => sample.direction = SampleDirection::Ingress,
            "egress" => sample.direction = SampleDirection::Egress,
            _ => {
                let valid =
                    "probability, collector_set_id, obs_domain_id, obs_point_id, sampling_port, ingress, egress";
                return Err(invalid("sample", &item, valid));
            }
        }
    }
    if sample.probability == 0 {
        return Err(Error::argument("sample", "needs a probability between 1 and 65535"));
    }
    Ok(Action::Sample(Box::new(sample)))
}

pub(super) fn format_sample(out: &mut String, sample: &Sample, ports: &dyn PortNames) {
    put!(out, "sample(probability={},collector_set_id={},", sample.probability, sample.collector_set);
    put!(out, "obs_domain_id={},obs_point_id={}", sample.obs_domain, sample.obs_point);
    if sample.sampling_port != OfPort::ANY {
        out.push_str(",sampling_port=");
        port::format(out, sample.sampling_port.0, ports);
    }
    out.push_str(match sample.direction {
        SampleDirection::Default => ")",
        SampleDirection::Ingress => ",ingress)",
        SampleDirection::Egress => ",egress)",
    });
}

/// `check_pkt_larger(N)->FIELD[BIT]`, or with a colon: `check_pkt_larger:N->FIELD[BIT]`.
pub(super) fn parse_check_pkt_larger(item: &Item<'_>) -> Result<Action, Error> {
    let wrong = || Error::argument("check_pkt_larger", "write it as check_pkt_larger(N)->FIELD[BIT]");
    let (length, target) =
        item.target.map(|target| (item.value, target)).or_else(|| item.value.split_once("->")).ok_or_else(wrong)?;
    let dst = subfield::parse_writable(target)?;
    if dst.n_bits != 1 {
        return Err(Error::argument("check_pkt_larger", "the target must be a single bit"));
    }
    Ok(Action::CheckPktLarger { pkt_len: integer16("check_pkt_larger", length)?, dst })
}

pub(super) fn parse_delete_field(text: &str) -> Result<Action, Error> {
    let expected = "a tunnel metadata field, tun_metadata0 to tun_metadata63";
    let field = TunField::from_name(text).ok_or_else(|| Wrong::value("delete_field", text, expected))?;
    Ok(Action::DeleteField(field.index))
}
