package rockdove.e2e;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import de.caluga.morphium.Morphium;
import de.caluga.morphium.annotations.Entity;
import de.caluga.morphium.annotations.Id;
import de.caluga.morphium.annotations.Index;
import de.caluga.morphium.driver.MorphiumId;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Morphium as an object mapper. */
@Timeout(60)
class EntityTest {
    @Entity
    public static class Item {
        @Id
        public MorphiumId id;
        @Index(options = "unique:1")
        public String code;
        @Index
        public int stock;
        public List<String> tags = new ArrayList<>();
        public Map<String, Object> data;
    }

    private Rockdove server;
    private Node node;
    private Morphium morphium;

    @BeforeEach
    void open() throws Exception {
        server = new Rockdove();
        node = new Node(new Bus.Settings(server, "entities", "msg", "mapper", new Bus.Mode("StandardMessaging", true)));
        morphium = node.morphium();
        morphium.ensureIndicesFor(Item.class);
    }

    @AfterEach
    void close() {
        node.close();
        server.close();
    }

    private static Item item(String code, int stock) {
        Item item = new Item();
        item.code = code;
        item.stock = stock;
        item.tags.add("tag-" + stock % 3);
        item.data = Map.of("long", 1L << 40, "text", "κόσμε", "nested", Map.of("list", List.of(1, 2)));
        return item;
    }

    @Test
    void storesQueriesUpdatesAndDeletes() {
        List<Item> items = new ArrayList<>();
        for (int n = 0; n < 500; n++) {
            items.add(item("c" + n, n));
        }
        morphium.storeList(items);
        assertNotNull(items.get(7).id);
        assertEquals(500, morphium.createQueryFor(Item.class).countAll());
        assertEquals(100, morphium.createQueryFor(Item.class).f("stock").gte(400).countAll());
        List<Item> page = morphium.createQueryFor(Item.class).f("tags").eq("tag-1").sort("-stock").skip(10).limit(5).asList();
        assertEquals(List.of(469, 466, 463, 460, 457), page.stream().map(found -> found.stock).toList());

        Item seven = morphium.createQueryFor(Item.class).f("code").eq("c7").get();
        assertEquals(1L << 40, seven.data.get("long"));
        assertEquals("κόσμε", seven.data.get("text"));
        seven.stock = 7000;
        morphium.store(seven);
        morphium.inc(seven, "stock", 5);
        assertEquals(7005, morphium.findById(Item.class, seven.id).stock);
        morphium.push(morphium.createQueryFor(Item.class).f("code").eq("c7"), "tags", (Object) "pushed");
        assertEquals(1, morphium.createQueryFor(Item.class).f("tags").eq("pushed").countAll());
        morphium.delete(seven);
        assertNull(morphium.findById(Item.class, seven.id));
        morphium.delete(morphium.createQueryFor(Item.class).f("stock").lt(100));
        assertEquals(400, morphium.createQueryFor(Item.class).countAll());
    }

    @Test
    void refusesASecondOfAUniqueValue() {
        morphium.insert(item("same", 1));
        assertThrows(RuntimeException.class, () -> morphium.insert(item("same", 2)));
        assertEquals(1, morphium.createQueryFor(Item.class).countAll());
    }

    @Test
    void iteratesOverMoreThanOneBatch() {
        List<Item> items = new ArrayList<>();
        for (int n = 0; n < 3000; n++) {
            items.add(item("c" + n, n));
        }
        morphium.insert(items);
        int seen = 0;
        for (Item ignored : morphium.createQueryFor(Item.class).asIterable(100)) {
            seen++;
        }
        assertEquals(3000, seen);
    }
}
