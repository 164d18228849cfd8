"""Attribution: of each allocation its step, phase, category, user line, module, region and name."""
