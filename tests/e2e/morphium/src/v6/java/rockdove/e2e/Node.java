package rockdove.e2e;

import de.caluga.morphium.Morphium;
import de.caluga.morphium.MorphiumConfig;
import de.caluga.morphium.config.MessagingSettings;
import de.caluga.morphium.messaging.MessageListener;
import de.caluga.morphium.messaging.MorphiumMessaging;
import de.caluga.morphium.messaging.Msg;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;

/** A node of Morphium 6. */
final class Node implements Bus {
    static final List<String> LAYOUTS =
        List.of("StandardMessaging", "MultiCollectionMessaging", "DualChannelMessaging");

    private final Morphium morphium;
    private final MorphiumMessaging messaging;

    Node(Settings settings) throws ReflectiveOperationException {
        this(settings, more -> {});
    }

    Node(Settings settings, Consumer<MessagingSettings> more) throws ReflectiveOperationException {
        MorphiumConfig config = new MorphiumConfig();
        config.connectionSettings().setDatabase(settings.database()).setMaxConnections(60).setMinConnections(2);
        config.clusterSettings().addHostToSeed("127.0.0.1", settings.server().port());
        config.messagingSettings().setMessagingImplementation(settings.mode().layout());
        config.messagingSettings().setUseChangeStream(settings.mode().changeStreams());
        config.messagingSettings().setMessageQueueName(settings.queue());
        config.messagingSettings().setSenderId(settings.id());
        more.accept(config.messagingSettings());
        morphium = new Morphium(config);
        messaging = morphium.createMessaging();
        messaging.setSenderId(settings.id());
    }

    @Override
    public void listen(String topic, UnaryOperator<Msg> handler) {
        messaging.addListenerForTopic(topic, (MessageListener<Msg>) (node, message) -> handler.apply(message));
    }

    @Override
    public void start() throws InterruptedException {
        messaging.start();
        if (!messaging.waitForReady(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("messaging was not ready within 20 s");
        }
    }

    @Override
    public void send(Msg message) {
        messaging.sendMessage(message);
    }

    @Override
    public Msg ask(Msg message, long limitMs) {
        return messaging.sendAndAwaitFirstAnswer(message, limitMs, false);
    }

    @Override
    public List<Msg> askAll(Msg message, int answers, long limitMs) {
        return messaging.sendAndAwaitAnswers(message, answers, limitMs, false);
    }

    MorphiumMessaging messaging() {
        return messaging;
    }

    @Override
    public Morphium morphium() {
        return morphium;
    }

    @Override
    public void close() {
        messaging.terminate();
        morphium.close();
    }
}
