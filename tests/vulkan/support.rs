//! A device with validation, whose messages each test must expect.

use allotment::pool::{DevicePool, Event as _, PoolOptions};
use allotment::vulkan::ash::{self, vk};
use allotment::vulkan::{Device, DeviceMemory, Event, Stream, Wish};
use std::ffi::{CStr, c_void};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard};

/// The file that `cargo xtask vulkan` counts messages in.
const REPORT: &str = "ALLOTMENT_VULKAN_REPORT";
const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// What the layers have said to one test.
#[derive(Default)]
struct Messages {
    list: Mutex<Vec<String>>,
    /// Whether calls that break a rule do not reach the driver, which need not bear them.
    is_strict: bool,
}

/// One device, made for one test.
pub(crate) struct World {
    /// Dropped before the handles.
    pub device: ManuallyDrop<Device>,
    handles: ManuallyDrop<Handles>,
    messages: Arc<Messages>,
    /// The messages that the test has asked about.
    expected: usize,
    at_end: Vec<&'static str>,
}

/// A stream that waits for the host.
pub(crate) struct Hold {
    device: ash::Device,
    event: vk::Event,
    waited: Event,
}

impl Hold {
    /// Lets the stream go on. So does the end of a test that fails.
    pub(crate) fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: the event is live until the stream has waited for it.
        unsafe {
            self.device.set_event(self.event).unwrap();
            self.waited.synchronize().unwrap();
            self.device.destroy_event(self.event, None);
        }
    }
}

struct Handles {
    /// The loader's library, which goes with its last clone.
    _entry: ash::Entry,
    debug: ash::ext::debug_utils::Instance,
    messenger: vk::DebugUtilsMessengerEXT,
    instance: ash::Instance,
    device: ash::Device,
    /// What the callback writes to.
    _messages: Arc<Messages>,
}

unsafe extern "system" fn hear(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: Vulkan passes a valid structure, and the pointer that it was given.
    let (data, messages) = unsafe { (&*data, &*messages.cast_const().cast::<Messages>()) };
    // SAFETY: both are strings of Vulkan, or null.
    let (name, text) = unsafe { (data.message_id_name_as_c_str(), data.message_as_c_str()) };
    let show = |text: Option<&CStr>| text.unwrap_or(c"").to_string_lossy().into_owned();
    messages.list.lock().unwrap().push(format!("{}: {}", show(name), show(text)));
    vk::Bool32::from(messages.is_strict)
}

/// Fails the test where there is no Vulkan, with what to do.
fn need<T, E: std::fmt::Debug>(result: Result<T, E>, what: &str) -> T {
    result.unwrap_or_else(|error| {
        panic!("no Vulkan here: {what}: {error:?}. `cargo xtask vulkan` sets a driver and its validation up")
    })
}

impl World {
    /// Makes a device with all checks.
    pub(crate) fn new() -> Self {
        Self::make(false)
    }

    /// Makes a device whose driver does not get to see what the layers report.
    pub(crate) fn strict() -> Self {
        Self::make(true)
    }

    fn make(is_strict: bool) -> Self {
        let at_submission = std::env::var("VK_LAYER_ENABLES").unwrap_or_default();
        let is_on = at_submission.contains("SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT").then_some(());
        need(is_on.ok_or(()), "the check of submissions (VK_LAYER_ENABLES)");
        // SAFETY: the library is only loaded.
        let entry = need(unsafe { ash::Entry::load() }, "the loader");
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let checks = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&checks);
        let messages = Arc::new(Messages { is_strict, ..Messages::default() });
        let user_data = Arc::as_ptr(&messages);
        let listener = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::WARNING | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
            )
            .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
            .pfn_user_callback(Some(hear))
            .user_data(user_data.cast_mut().cast());
        let mut at_first = listener;
        let (layers, extensions) = ([LAYER.as_ptr()], [ash::ext::debug_utils::NAME.as_ptr()]);
        let info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions)
            .push_next(&mut features)
            .push_next(&mut at_first);
        // SAFETY: the structures live until the call returns.
        let instance = need(unsafe { entry.create_instance(&info, None) }, "an instance with validation");
        let debug = ash::ext::debug_utils::Instance::new(&entry, &instance);
        // SAFETY: the callback and its data live as long as the messenger.
        let messenger = unsafe { debug.create_debug_utils_messenger(&listener, None) }.unwrap();
        // SAFETY: the instance is live, here and below.
        let all = unsafe { instance.enumerate_physical_devices() }.unwrap();
        let physical = *need(all.first().ok_or(()), "a device");
        let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        // SAFETY: as above.
        let has = unsafe { instance.enumerate_device_extension_properties(physical) }.unwrap();
        let mut extensions = vec![ash::ext::memory_budget::NAME, ash::khr::external_memory_fd::NAME];
        extensions.retain(|name| has.iter().any(|known| known.extension_name_as_c_str() == Ok(name)));
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut timelines);
        // SAFETY: as above.
        let raw = unsafe { instance.create_device(physical, &info, None) }.unwrap();
        let handles = Handles {
            _entry: entry.clone(),
            debug,
            messenger,
            instance: instance.clone(),
            device: raw.clone(),
            _messages: messages.clone(),
        };
        // SAFETY: the handles are those of this device, which `Handles` destroys after it.
        let device = unsafe { Device::from_ash(entry, instance, physical, raw, &[0], &extensions) };
        let (device, handles) = (ManuallyDrop::new(device), ManuallyDrop::new(handles));
        Self { device, handles, messages, expected: 0, at_end: Vec::new() }
    }

    pub(crate) fn stream(&self) -> Stream {
        Stream::new(&self.device).unwrap()
    }

    pub(crate) fn memory(&self, wish: Wish) -> DeviceMemory {
        DeviceMemory::new(&self.device, wish).unwrap()
    }

    pub(crate) fn pool(&self, wish: Wish, options: PoolOptions) -> Arc<DevicePool<DeviceMemory>> {
        Arc::new(DevicePool::new(self.memory(wish), options).unwrap())
    }

    /// Makes a stream's work wait for the host from here on.
    pub(crate) fn hold(&self, stream: &Stream) -> Hold {
        let device = self.device.ash().clone();
        // SAFETY: the device is live, and the event until the stream has waited for it.
        let event = unsafe { device.create_event(&vk::EventCreateInfo::default(), None) }.unwrap();
        let (host, all) = (vk::PipelineStageFlags::HOST, vk::PipelineStageFlags::ALL_COMMANDS);
        // SAFETY: as above.
        let waited = unsafe {
            stream
                .run(|device, commands| device.cmd_wait_events(commands, &[event], host, all, &[], &[], &[]))
        };
        Hold { device, event, waited: waited.unwrap() }
    }

    /// Ends the test with these words in what the layers report of the device's end, and with nothing else.
    pub(crate) fn end(mut self, words: &[&'static str]) {
        self.at_end = words.to_vec();
    }

    fn heard(&self) -> MutexGuard<'_, Vec<String>> {
        self.messages.list.lock().unwrap()
    }

    /// Asserts that the layers have reported something with each of these words since they were last asked, and nothing else.
    #[track_caller]
    pub(crate) fn expect(&mut self, words: &[&str]) {
        let heard = std::mem::take(&mut *self.heard());
        for word in words {
            assert!(heard.iter().any(|text| text.contains(word)), "no message has {word}: {heard:#?}");
        }
        for text in &heard {
            assert!(words.iter().any(|word| text.contains(word)), "unexpected: {text}");
        }
        self.expected += heard.len();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: neither is used again, and the tests have dropped what they made of the device. What they leave behind is reported.
        unsafe {
            ManuallyDrop::drop(&mut self.device);
            ManuallyDrop::drop(&mut self.handles);
        }
        let mut heard = std::mem::take(&mut *self.heard());
        for word in &self.at_end {
            assert!(heard.iter().any(|text| text.contains(word)), "no message has {word}: {heard:#?}");
        }
        let all = heard.len();
        heard.retain(|text| !self.at_end.iter().any(|word| text.contains(word)));
        self.expected += all - heard.len();
        if let Some(path) = std::env::var_os(REPORT) {
            let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
            let line = format!("{} expected, {} unexpected\n", self.expected, heard.len());
            file.write_all(line.as_bytes()).unwrap();
        }
        assert!(std::thread::panicking() || heard.is_empty(), "the layers say: {heard:#?}");
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: `World` drops its clone of the device first, which was the last.
        unsafe {
            let _ = self.device.device_wait_idle();
            self.device.destroy_device(None);
            self.debug.destroy_debug_utils_messenger(self.messenger, None);
            self.instance.destroy_instance(None);
        }
    }
}
