//! Instructions and actions as one list, in the order in which they are executed.

use openflow::{Action, Cookie, Instructions, TableId, WriteMetadata};

/// A step of a pipeline.
#[derive(Clone, Copy)]
pub enum PipelineStep<'a> {
    /// An action of Apply-Actions.
    Act(&'a Action),
    /// Meter.
    Meter(u32),
    /// Clear-Actions.
    Clear,
    /// Write-Actions.
    Write(&'a [Action]),
    /// Write-Metadata.
    Metadata(WriteMetadata),
    /// Goto-Table.
    Goto(TableId),
    /// The steps after this are of a rule in this table and with this cookie.
    Resume {
        /// Table.
        table: TableId,
        /// Cookie.
        cookie: Option<Cookie>,
    },
}

/// A step that waits for a recirculated packet, and so owns its actions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrozenStep {
    Act(Action),
    Meter(u32),
    Clear,
    Write(Vec<Action>),
    Metadata(WriteMetadata),
    Goto(TableId),
    Resume { table: TableId, cookie: Option<Cookie> },
}

impl FrozenStep {
    pub fn as_step(&self) -> PipelineStep<'_> {
        match self {
            FrozenStep::Act(action) => PipelineStep::Act(action),
            FrozenStep::Meter(id) => PipelineStep::Meter(*id),
            FrozenStep::Clear => PipelineStep::Clear,
            FrozenStep::Write(actions) => PipelineStep::Write(actions),
            FrozenStep::Metadata(write) => PipelineStep::Metadata(*write),
            FrozenStep::Goto(table) => PipelineStep::Goto(*table),
            &FrozenStep::Resume { table, cookie } => PipelineStep::Resume { table, cookie },
        }
    }
}

impl PipelineStep<'_> {
    pub(crate) fn to_frozen(self) -> FrozenStep {
        match self {
            PipelineStep::Act(action) => FrozenStep::Act(action.clone()),
            PipelineStep::Meter(id) => FrozenStep::Meter(id),
            PipelineStep::Clear => FrozenStep::Clear,
            PipelineStep::Write(actions) => FrozenStep::Write(actions.to_vec()),
            PipelineStep::Metadata(write) => FrozenStep::Metadata(write),
            PipelineStep::Goto(table) => FrozenStep::Goto(table),
            PipelineStep::Resume { table, cookie } => FrozenStep::Resume { table, cookie },
        }
    }
}

/// The steps of a rule (OpenFlow 1.3.5 section 5.9).
pub(crate) fn of_instructions(instructions: &Instructions) -> impl Iterator<Item = PipelineStep<'_>> + Clone {
    let write = (!instructions.write.is_empty()).then_some(PipelineStep::Write(&instructions.write));
    let applied = instructions.apply.iter().map(PipelineStep::Act);
    let metered = instructions.meter.map(PipelineStep::Meter);
    metered
        .into_iter()
        .chain(applied)
        .chain(instructions.clear.then_some(PipelineStep::Clear))
        .chain(write)
        .chain(instructions.metadata.map(PipelineStep::Metadata))
        .chain(instructions.goto.map(PipelineStep::Goto))
}

/// The action set in the order in which it is executed (OpenFlow 1.3.5 section 5.10, with OVS's order
/// for its own actions): of most kinds the last one written counts. Empty without an output.
pub(crate) fn of_action_set(set: &[Action]) -> Vec<Action> {
    let last = |kind: fn(&Action) -> bool| set.iter().rev().find(|action| kind(action)).cloned();
    let once: [fn(&Action) -> bool; 9] = [
        |a| matches!(a, Action::StripVlan),
        |a| matches!(a, Action::PopMpls(_)),
        |a| matches!(a, Action::Decap(_)),
        |a| matches!(a, Action::Encap(_)),
        |a| matches!(a, Action::PushMpls(_)),
        |a| matches!(a, Action::PushVlan(_)),
        |a| matches!(a, Action::DecTtl | Action::DecTtlCntIds(_)),
        |a| matches!(a, Action::DecMplsTtl),
        |a| matches!(a, Action::DecNshTtl),
    ];
    let Some(output) = last(|a| matches!(a, Action::Group(_)))
        .or_else(|| last(|a| matches!(a, Action::Output { .. })))
        .or_else(|| last(|a| matches!(a, Action::Resubmit { .. })))
        .or_else(|| last(|a| matches!(a, Action::CtClear)))
        .or_else(|| last(|a| matches!(a, Action::Ct(_))))
    else {
        return Vec::new();
    };
    let mut list: Vec<Action> = once.into_iter().filter_map(last).collect();
    list.extend(set.iter().filter(|action| is_set(action)).cloned());
    list.extend(last(|a| matches!(a, Action::SetQueue(_))));
    list.push(output);
    list
}

fn is_set(action: &Action) -> bool {
    action.field_write().is_some()
        || matches!(action, Action::SetVlanVid { .. } | Action::SetVlanPcp { .. } | Action::RegMove { .. })
}
