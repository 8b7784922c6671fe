"""One mandatory policy on a resource, one on the whole stack."""

from pulumi_policy import (
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)


def no_draft(args: ResourceValidationArgs, report: ReportViolation) -> None:
    if args.resource_type == "note:index:Note" and args.props["text"] == "draft":
        report("text is 'draft': set a final text", None)


def at_most_two(args: StackValidationArgs, report: ReportViolation) -> None:
    notes = [resource for resource in args.resources if resource.resource_type == "note:index:Note"]
    if len(notes) > 2:
        report(f"{len(notes)} notes: at most 2 are allowed", None)


PolicyPack(
    name="notes",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[
        ResourceValidationPolicy("no-draft", "Notes are final.", no_draft),
        StackValidationPolicy("at-most-two", "A stack holds two notes at most.", at_most_two),
    ],
)
