// Which views a page has: those that its recordings have something for.

import type { Host, Pane } from "../state/pane";
import type { Tab } from "../state/store";
import { AddressesPane } from "./addresses_pane";
import { ComparePane } from "./compare_pane";
import { ListPane } from "./list_pane";
import { MemoryPane } from "./memory_pane";
import { RanksPane } from "./ranks_pane";
import { WhoPane } from "./who_pane";

export function makePanes(host: Host): Partial<Record<Tab, Pane>> {
  const several = host.scenes.length > 1;
  return {
    memory: new MemoryPane(host),
    addresses: new AddressesPane(host),
    who: new WhoPane(host),
    list: new ListPane(host),
    ...(several && { compare: new ComparePane(host), ranks: new RanksPane(host) }),
  };
}
