#include "proto/codec/plan.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/columns.h"
#include "proto/codec/sampling.h"

namespace flotilla::codec {
namespace {

using columns::AddTokens;
using columns::At;
using columns::CheckColumn;
using columns::CheckCounts;
using columns::CheckRows;
using columns::CheckTokens;
using columns::ColumnReader;
using columns::DropUsual;
using columns::Wrong;

// The byte of StepPlan.ops for each operation.
enum OpKind : std::uint8_t {
  kOpen = v1::StepPlan::kOpensFieldNumber,
  kGrant = v1::StepPlan::kGrantsFieldNumber,
  kFork = v1::StepPlan::kForksFieldNumber,
  kDrop = v1::StepPlan::kDropsFieldNumber,
  kRun = v1::StepPlan::kRunsFieldNumber,
  kDefer = v1::StepPlan::kDeferredFieldNumber,
  kBackgroundCopy = v1::StepPlan::kBackgroundCopiesFieldNumber,
  kLoadAdapter = v1::StepPlan::kLoadAdaptersFieldNumber,
  kUnloadAdapter = v1::StepPlan::kUnloadAdaptersFieldNumber,
  kTrim = v1::StepPlan::kTrimsFieldNumber,
  kSpeculate = v1::StepPlan::kSpeculationsFieldNumber,
  kRelease = v1::StepPlan::kReleasesFieldNumber,
};
constexpr std::size_t kOpKinds = kRelease + 1;

void WriteCopies(const std::vector<BlockCopy>& copies, v1::BlockCopies* proto) {
  for (const BlockCopy& copy : copies) {
    proto->mutable_from()->Add(copy.from.value());
    proto->mutable_to()->Add(copy.to.value());
  }
}

absl::Status ReadCopies(const v1::BlockCopies& proto, std::vector<BlockCopy>& copies) {
  constexpr absl::string_view kField = "forks.copies";
  if (absl::Status s = CheckRows(kField, proto.to_size(), proto.from_size()); !s.ok()) return s;
  ColumnReader from(proto.from()), to(proto.to());
  copies.reserve(proto.from_size());
  for (int i = 0; i < proto.from_size(); ++i) {
    copies.push_back({.from = BlockId(from.Next()), .to = BlockId(to.Next())});
    if (copies.back().from == kNullBlock || copies.back().to == kNullBlock) {
      return Wrong(kField, "the null block");
    }
  }
  return absl::OkStatus();
}

// Appends operations to a message, one at a time.
class PlanWriter {
 public:
  explicit PlanWriter(v1::StepPlan* proto) : proto_(*proto) {}

  void Add(const OpenSequence& op) {
    AddKind(kOpen);
    v1::OpenSequence& open = *proto_.add_opens();
    open.set_sequence(op.sequence.value());
    open.set_request_incarnation(op.request.incarnation);
    open.set_request_counter(op.request.counter);
    open.set_index(op.index.value());
    AddTokens(op.tokens, open.mutable_tokens());
    open.set_prompt_tokens(op.prompt_tokens);
    open.set_cached_tokens(op.cached_tokens);
    ToProto(op.sampling, open.mutable_sampling());
    AddTokens(op.stop.stop_tokens, open.mutable_stop_tokens());
    open.set_max_tokens(op.stop.max_tokens);
    open.set_min_tokens(op.stop.min_tokens);
    open.set_output_top(op.logprobs.output_top);
    open.set_prompt_top(op.logprobs.prompt_top);
    open.set_micro_batch(op.micro_batch);
    open.set_is_beam(op.is_beam);
  }

  void Add(const GrantBlocks& op) {
    AddKind(kGrant);
    v1::Grants& grants = *proto_.mutable_grants();
    grants.mutable_sequences()->Add(op.sequence.value());
    grants.add_groups(op.group.value());
    grants.add_counts(static_cast<std::uint32_t>(op.blocks.size()));
    for (const BlockId block : op.blocks) {
      grants.mutable_blocks()->Add(block.value());
    }
  }

  void Add(const ForkSequence& op) {
    AddKind(kFork);
    v1::ForkSequence& fork = *proto_.add_forks();
    fork.set_parent(op.parent.value());
    fork.set_child(op.child.value());
    fork.set_index(op.index.value());
    fork.set_length(op.length);
    AddTokens(op.tokens, fork.mutable_tokens());
    if (!op.copies.empty()) WriteCopies(op.copies, fork.mutable_copies());
    fork.set_micro_batch(op.micro_batch);
  }

  void Add(const DropSequence& op) {
    AddKind(kDrop);
    proto_.mutable_drops()->Add(op.sequence.value());
  }

  void Add(const Run& op) {
    AddKind(kRun);
    v1::Runs& runs = *proto_.mutable_runs();
    runs.mutable_sequences()->Add(op.sequence.value());
    runs.add_counts(op.count);
    runs.add_sample(op.sample);
    runs.add_prompt_logprobs(op.prompt_logprobs);
    runs.add_pooled(op.pooled);
    runs.add_candidates(op.candidates);
    runs.add_append_counts(static_cast<std::uint32_t>(op.append.size()));
    AddTokens(op.append, runs.mutable_append());
  }

  void Add(const Defer& op) {
    AddKind(kDefer);
    proto_.mutable_deferred()->Add(op.sequence.value());
  }

  void Add(const BackgroundCopy& op) {
    AddKind(kBackgroundCopy);
    v1::BackgroundCopy& copy = *proto_.add_background_copies();
    copy.set_id(op.id);
    copy.set_kind(op.kind == BackgroundCopy::Kind::kOut ? v1::BackgroundCopy::KIND_OUT
                                                        : v1::BackgroundCopy::KIND_IN);
    copy.set_tier(op.tier);
    for (const BackgroundCopy::Move& move : op.moves) {
      copy.mutable_blocks()->Add(move.block.value());
      copy.mutable_slots()->Add(move.slot);
    }
  }

  void Add(const LoadAdapter& op) {
    AddKind(kLoadAdapter);
    proto_.add_load_adapters(op.adapter);
  }

  void Add(const UnloadAdapter& op) {
    AddKind(kUnloadAdapter);
    proto_.add_unload_adapters(op.adapter);
  }

  void Add(const TrimBlocks& op) {
    AddKind(kTrim);
    v1::Trims& trims = *proto_.mutable_trims();
    trims.mutable_sequences()->Add(op.sequence.value());
    trims.add_groups(op.group.value());
    trims.add_counts(op.count);
  }

  void Add(const Speculate& op) {
    AddKind(kSpeculate);
    v1::Speculations& speculations = *proto_.mutable_speculations();
    speculations.mutable_sequences()->Add(op.sequence.value());
    speculations.add_depths(op.depth);
  }

  void Add(const ReleaseBlocks& op) {
    AddKind(kRelease);
    v1::Releases& releases = *proto_.mutable_releases();
    releases.mutable_sequences()->Add(op.sequence.value());
    releases.add_groups(op.group.value());
    releases.add_counts(op.count);
  }

  // After the last operation.
  void Finish() {
    if (proto_.has_releases()) {
      DropUsual(0u, proto_.mutable_releases()->mutable_groups());
      DropUsual(1u, proto_.mutable_releases()->mutable_counts());
    }
    if (proto_.has_trims()) {
      DropUsual(0u, proto_.mutable_trims()->mutable_groups());
      DropUsual(1u, proto_.mutable_trims()->mutable_counts());
    }
    if (proto_.has_speculations()) {
      DropUsual(0u, proto_.mutable_speculations()->mutable_depths());
    }
    if (proto_.has_grants()) {
      DropUsual(0u, proto_.mutable_grants()->mutable_groups());
      DropUsual(1u, proto_.mutable_grants()->mutable_counts());
    }
    if (!proto_.has_runs()) return;
    v1::Runs& runs = *proto_.mutable_runs();
    DropUsual(1u, runs.mutable_counts());
    DropUsual(false, runs.mutable_sample());
    DropUsual(false, runs.mutable_prompt_logprobs());
    DropUsual(false, runs.mutable_pooled());
    DropUsual(0u, runs.mutable_candidates());
    DropUsual(0u, runs.mutable_append_counts());
  }

 private:
  void AddKind(OpKind kind) { proto_.mutable_ops()->push_back(static_cast<char>(kind)); }

  v1::StepPlan& proto_;
};

// Reads operations in their order; each kind advances through its own rows.
class PlanReader {
 public:
  // `proto` outlives the reader.
  explicit PlanReader(const v1::StepPlan& proto)
      : proto_(proto),
        granted_to_(proto.grants().sequences()),
        granted_(proto.grants().blocks()),
        dropped_(proto.drops()),
        run_(proto.runs().sequences()),
        deferred_(proto.deferred()),
        trimmed_(proto.trims().sequences()),
        speculating_(proto.speculations().sequences()),
        released_(proto.releases().sequences()) {}

  absl::Status Read(std::vector<PlanOp>& ops) {
    if (absl::Status s = CheckKinds(); !s.ok()) return s;
    if (absl::Status s = CheckGrants(); !s.ok()) return s;
    if (absl::Status s = CheckRuns(); !s.ok()) return s;
    if (absl::Status s = CheckTrimsAndDepths(); !s.ok()) return s;
    rows_ = {};
    ops.reserve(proto_.ops().size());
    for (const char kind : proto_.ops()) {
      const std::size_t row = rows_[static_cast<std::uint8_t>(kind)]++;
      absl::StatusOr<PlanOp> op = ReadOp(static_cast<OpKind>(kind), row);
      if (!op.ok()) return op.status();
      ops.push_back(*std::move(op));
    }
    return absl::OkStatus();
  }

 private:
  // Counts the rows of each kind and checks that the message has as many.
  absl::Status CheckKinds() {
    for (const char c : proto_.ops()) {
      const auto kind = static_cast<std::uint8_t>(c);
      if (kind < kOpen || kind >= kOpKinds) {
        return Wrong("ops", absl::StrCat("operation of kind ", kind));
      }
      ++rows_[kind];
    }
    const std::pair<absl::string_view, std::pair<int, OpKind>> lists[] = {
        {"opens", {proto_.opens_size(), kOpen}},
        {"grants.sequences", {proto_.grants().sequences_size(), kGrant}},
        {"forks", {proto_.forks_size(), kFork}},
        {"drops", {proto_.drops_size(), kDrop}},
        {"runs.sequences", {proto_.runs().sequences_size(), kRun}},
        {"deferred", {proto_.deferred_size(), kDefer}},
        {"background_copies", {proto_.background_copies_size(), kBackgroundCopy}},
        {"load_adapters", {proto_.load_adapters_size(), kLoadAdapter}},
        {"unload_adapters", {proto_.unload_adapters_size(), kUnloadAdapter}},
        {"trims.sequences", {proto_.trims().sequences_size(), kTrim}},
        {"speculations.sequences", {proto_.speculations().sequences_size(), kSpeculate}},
        {"releases.sequences", {proto_.releases().sequences_size(), kRelease}},
    };
    for (const auto& [field, list] : lists) {
      if (absl::Status s = CheckRows(field, list.first, rows_[list.second]); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status CheckGrants() const {
    const v1::Grants& grants = proto_.grants();
    const std::size_t rows = rows_[kGrant];
    if (absl::Status s = CheckColumn("grants.groups", grants.groups_size(), rows); !s.ok()) {
      return s;
    }
    return CheckCounts("grants.counts", grants.counts(), 1, rows, grants.blocks_size());
  }

  absl::Status CheckRuns() const {
    const v1::Runs& runs = proto_.runs();
    const std::size_t rows = rows_[kRun];
    const std::pair<absl::string_view, int> columns[] = {
        {"runs.counts", runs.counts_size()},
        {"runs.sample", runs.sample_size()},
        {"runs.prompt_logprobs", runs.prompt_logprobs_size()},
        {"runs.pooled", runs.pooled_size()},
        {"runs.candidates", runs.candidates_size()},
    };
    for (const auto& [field, size] : columns) {
      if (absl::Status s = CheckColumn(field, size, rows); !s.ok()) return s;
    }
    if (absl::Status s = CheckTokens("runs.append", runs.append()); !s.ok()) return s;
    return CheckCounts("runs.append_counts", runs.append_counts(), 0, rows, runs.append_size());
  }

  absl::Status CheckTrimsAndDepths() const {
    const v1::Trims& trims = proto_.trims();
    absl::Status s = CheckColumn("trims.groups", trims.groups_size(), rows_[kTrim]);
    s.Update(CheckColumn("trims.counts", trims.counts_size(), rows_[kTrim]));
    const v1::Releases& releases = proto_.releases();
    s.Update(CheckColumn("releases.groups", releases.groups_size(), rows_[kRelease]));
    s.Update(CheckColumn("releases.counts", releases.counts_size(), rows_[kRelease]));
    s.Update(
        CheckColumn("speculations.depths", proto_.speculations().depths_size(), rows_[kSpeculate]));
    return s;
  }

  absl::StatusOr<PlanOp> ReadOp(OpKind kind, std::size_t row) {
    const int at = static_cast<int>(row);
    switch (kind) {
      case kOpen:
        return ReadOpen(proto_.opens(at));
      case kGrant:
        return ReadGrant(row);
      case kFork:
        return ReadFork(proto_.forks(at));
      case kDrop:
        return DropSequence{.sequence = SequenceHandle(dropped_.Next())};
      case kRun:
        return ReadRun(row);
      case kDefer:
        return Defer{.sequence = SequenceHandle(deferred_.Next())};
      case kBackgroundCopy:
        return ReadBackgroundCopy(proto_.background_copies(at));
      case kLoadAdapter:
        return LoadAdapter{.adapter = proto_.load_adapters(at)};
      case kUnloadAdapter:
        return UnloadAdapter{.adapter = proto_.unload_adapters(at)};
      case kTrim:
        return TrimBlocks{.sequence = SequenceHandle(trimmed_.Next()),
                          .group = GroupIndex(At(proto_.trims().groups(), row, 0u)),
                          .count = At(proto_.trims().counts(), row, 1u)};
      case kSpeculate:
        return Speculate{.sequence = SequenceHandle(speculating_.Next()),
                         .depth = At(proto_.speculations().depths(), row, 0u)};
      case kRelease:
        return ReleaseBlocks{.sequence = SequenceHandle(released_.Next()),
                             .group = GroupIndex(At(proto_.releases().groups(), row, 0u)),
                             .count = At(proto_.releases().counts(), row, 1u)};
    }
    return Wrong("ops", "an operation that is not known");
  }

  absl::StatusOr<PlanOp> ReadOpen(const v1::OpenSequence& proto) const {
    if (absl::Status s = CheckTokens("opens.tokens", proto.tokens()); !s.ok()) return s;
    if (absl::Status s = CheckTokens("opens.stop_tokens", proto.stop_tokens()); !s.ok()) return s;
    SamplingParams sampling;
    if (absl::Status s = FromProto("opens.sampling", proto.sampling(), sampling); !s.ok()) return s;
    return OpenSequence{
        .sequence = SequenceHandle(proto.sequence()),
        .request = {.incarnation = proto.request_incarnation(), .counter = proto.request_counter()},
        .index = SequenceIndex(proto.index()),
        .tokens = {proto.tokens().begin(), proto.tokens().end()},
        .prompt_tokens = proto.prompt_tokens(),
        .cached_tokens = proto.cached_tokens(),
        .sampling = std::move(sampling),
        .stop = {.stop_tokens = {proto.stop_tokens().begin(), proto.stop_tokens().end()},
                 .max_tokens = proto.max_tokens(),
                 .min_tokens = proto.min_tokens()},
        .logprobs = {.output_top = proto.output_top(), .prompt_top = proto.prompt_top()},
        .micro_batch = proto.micro_batch(),
        .is_beam = proto.is_beam(),
    };
  }

  absl::StatusOr<PlanOp> ReadGrant(std::size_t row) {
    const v1::Grants& grants = proto_.grants();
    GrantBlocks grant{.sequence = SequenceHandle(granted_to_.Next()),
                      .group = GroupIndex(At(grants.groups(), row, 0u)),
                      .blocks = {}};
    const std::uint32_t count = At(grants.counts(), row, 1u);
    grant.blocks.reserve(count);  // the counts were checked against the blocks
    for (std::uint32_t i = 0; i < count; ++i) {
      grant.blocks.emplace_back(granted_.Next());
      if (grant.blocks.back() == kNullBlock) return Wrong("grants.blocks", "the null block");
    }
    return grant;
  }

  absl::StatusOr<PlanOp> ReadFork(const v1::ForkSequence& proto) const {
    if (absl::Status s = CheckTokens("forks.tokens", proto.tokens()); !s.ok()) return s;
    ForkSequence fork{.parent = SequenceHandle(proto.parent()),
                      .child = SequenceHandle(proto.child()),
                      .index = SequenceIndex(proto.index()),
                      .length = proto.length(),
                      .tokens = {proto.tokens().begin(), proto.tokens().end()},
                      .copies = {},
                      .micro_batch = proto.micro_batch()};
    if (absl::Status s = ReadCopies(proto.copies(), fork.copies); !s.ok()) return s;
    return fork;
  }

  absl::StatusOr<PlanOp> ReadRun(std::size_t row) {
    const v1::Runs& runs = proto_.runs();
    const auto* append = runs.append().data() + appended_;
    const std::uint32_t appends = At(runs.append_counts(), row, 0u);
    appended_ += appends;
    return Run{.sequence = SequenceHandle(run_.Next()),
               .count = At(runs.counts(), row, 1u),
               .sample = At(runs.sample(), row, false),
               .prompt_logprobs = At(runs.prompt_logprobs(), row, false),
               .append = {append, append + appends},
               .candidates = At(runs.candidates(), row, 0u),
               .pooled = At(runs.pooled(), row, false)};
  }

  absl::StatusOr<PlanOp> ReadBackgroundCopy(const v1::BackgroundCopy& proto) const {
    BackgroundCopy copy{.id = proto.id(), .kind = {}, .tier = proto.tier(), .moves = {}};
    switch (proto.kind()) {
      case v1::BackgroundCopy::KIND_OUT:
        copy.kind = BackgroundCopy::Kind::kOut;
        break;
      case v1::BackgroundCopy::KIND_IN:
        copy.kind = BackgroundCopy::Kind::kIn;
        break;
      default:  // the enum is open: any number may come
        return Wrong("background_copies.kind", absl::StrCat(static_cast<int>(proto.kind())));
    }
    const auto rows = static_cast<std::size_t>(proto.blocks_size());
    absl::Status s = CheckRows("background_copies.slots", proto.slots_size(), rows);
    if (!s.ok()) return s;
    ColumnReader blocks(proto.blocks()), slots(proto.slots());
    copy.moves.reserve(rows);
    while (copy.moves.size() < rows) {
      copy.moves.push_back({.block = BlockId(blocks.Next()), .slot = slots.Next()});
      if (copy.moves.back().block == kNullBlock) {
        return Wrong("background_copies.blocks", "the null block");
      }
    }
    return copy;
  }

  const v1::StepPlan& proto_;
  std::array<std::size_t, kOpKinds> rows_{};  // by OpKind
  ColumnReader granted_to_, granted_, dropped_, run_, deferred_, trimmed_, speculating_, released_;
  std::size_t appended_ = 0;
};

}  // namespace

void ToProto(const StepPlan& plan, v1::StepPlan* proto) {
  proto->set_epoch(plan.epoch.value());
  proto->set_step(plan.step.value());
  proto->set_digest(plan.digest);
  proto->set_predicted_ns(plan.predicted_ns);
  PlanWriter writer(proto);
  for (const PlanOp& op : plan.ops) {
    std::visit([&writer](const auto& o) { writer.Add(o); }, op);
  }
  writer.Finish();
}

absl::StatusOr<StepPlan> FromProto(const v1::StepPlan& proto) {
  StepPlan plan{.epoch = Epoch(proto.epoch()),
                .step = Step(proto.step()),
                .digest = proto.digest(),
                .ops = {},
                .predicted_ns = proto.predicted_ns()};
  if (absl::Status s = PlanReader(proto).Read(plan.ops); !s.ok()) return s;
  return plan;
}

}  // namespace flotilla::codec
